"""The GPU backends of this machine, each once; and one model on one of them, as the worker loads it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.choice import BACKEND_VARIABLE, FILE, Backend, chosen
from tests.turns import N_CELLS, PROMPTS
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.llama.devices import backends, devices
from worker.models.loading.load import LoadedRunner, load_runner
from worker.models.plan.devices import Device

GPU_BACKENDS: tuple[Backend, ...] = ("cuda", "metal", "vulkan")

LoadOn = Callable[..., LoadedRunner]


@pytest.fixture(scope="session", params=GPU_BACKENDS)
def gpu(request: pytest.FixtureRequest) -> Device:
    """The first device of each GPU backend.

    A backend that `.llorch-test.toml` enables and that is not there fails; otherwise its tests are skipped, with the
    reason.
    """
    backend: Backend = request.param
    if not chosen().may_run(backend):
        pytest.skip(f"{backend}: not among features.enabled in {FILE}")
    found = [device for device in devices() if device.is_gpu and device.backend == backend]
    if found:
        return found[0]
    reason = f"{backend}: {why_not(backend)}"
    if chosen().must_run(backend):
        pytest.fail(f"{reason}; but {FILE} or {BACKEND_VARIABLE} asks for it")
    pytest.skip(reason)


def why_not(backend: Backend) -> str:
    """The reason why there is no device of that backend here."""
    reasons = {compiled.name: compiled.reason for compiled in backends(os.environ)}
    return reasons.get(backend) or f"this build of llama.cpp has no {backend}"


@pytest.fixture
def load_on(model_path: Path) -> Iterator[LoadOn]:
    """Load the model as `serve --device NAME` would, with these settings; freed after the test."""
    loaded: list[LoadedRunner] = []

    def load(device: str, **changes: object) -> LoadedRunner:
        sizes = {"ctx_size": N_CELLS, "parallel": len(PROMPTS), "threads": 2, "deterministic": True}
        settings = Settings(device=device, **{**sizes, **changes})  # type: ignore[arg-type]  # mixed on purpose
        loaded.append(load_runner(configure(settings, model_path), lambda _: None))
        return loaded[-1]

    yield load
    for one in loaded:
        one.runner.close()
        one.model.close()
