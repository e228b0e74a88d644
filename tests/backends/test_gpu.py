"""Every GPU backend this machine has, on the real model: it is where we say it is, and it is the CPU's model.

On Linux without a GPU, Mesa's software driver is one: GGML_VK_VISIBLE_DEVICES=0 with a Vulkan build of llama.cpp.
"""

import sys
from pathlib import Path

import pytest

from parity import corpus
from parity.bounds import Bounds
from parity.evidence import Window
from parity.setups import as_served, compute, opened
from tests.backends.choice import chosen
from tests.backends.conftest import LoadOn
from tests.turns import NEAR, PROMPTS, answers, first_turns
from tests.worker_process import WorkerProcess, check_order, text_of
from worker.llama.devices import devices
from worker.models.facts.info import read_info
from worker.models.loading.load import LoadedRunner
from worker.models.plan.devices import Device
from worker.models.plan.residency import DRIVERS_OWN_BYTES

SOFTWARE_S = 1800
"""The safety stop: a GPU takes seconds, a driver that computes on a busy processor many minutes."""

pytestmark = [pytest.mark.model, pytest.mark.timeout(SOFTWARE_S)]

N_COMPARED = 64
"""Tokens whose logits are compared."""


def free_bytes(gpu: Device) -> int:
    """The free memory by the driver's account now."""
    return next(device.free_bytes for device in devices() if device.ordinal == gpu.ordinal)


def on_gpu_bytes(gpu: Device, loaded: LoadedRunner) -> int:
    """The bytes by the library's own buffer lines."""
    return loaded.runner.sizes.on_device(gpu.name)


def n_part_of(loaded: LoadedRunner) -> int:
    """The number of the model's layers in a partial offload: some, never all."""
    return min(chosen().backend.gpu_layers, loaded.model.n_layers - 1)


# ── where it is ──────────────────────────────────────────────────────────────────────────────────


def test_the_whole_model_is_resident_where_it_was_asked_for(gpu: Device, load_on: LoadOn) -> None:
    loaded = load_on(gpu.flag, gpu_layers="all", require_full_offload=True)
    facts = loaded.facts
    assert (facts.backend, facts.device_index, facts.resident) == (gpu.backend, gpu.index, True)
    assert facts.attention == "gpu"
    assert (facts.device_name, facts.memory_architecture) == (gpu.description, gpu.memory_architecture)
    assert loaded.model.n_offloaded == loaded.model.n_layers == facts.offload.gpu_layers > 1
    assert facts.memory_bytes == on_gpu_bytes(gpu, loaded)
    # The token embedding stays with the CPU; it is less than half of any model there is.
    assert on_gpu_bytes(gpu, loaded) > loaded.model.sizes.total_bytes / 2


def test_the_drivers_figures_agree_with_ours_and_all_is_given_back(gpu: Device, load_on: LoadOn) -> None:
    before = free_bytes(gpu)
    loaded = load_on(gpu.flag, gpu_layers="all")
    taken, ours = before - free_bytes(gpu), on_gpu_bytes(gpu, loaded)
    loaded.runner.close()
    loaded.model.close()
    left = before - free_bytes(gpu)
    if taken == 0 and gpu.backend != "cuda":
        pytest.skip(f"{gpu.description}: its driver does not say how much memory is in use")
    assert 0.9 * ours <= taken <= 1.1 * ours + DRIVERS_OWN_BYTES
    assert taken - left >= 0.9 * ours


def test_some_layers_alone_are_on_the_gpu_and_that_is_not_resident(gpu: Device, load_on: LoadOn) -> None:
    whole = load_on(gpu.flag, gpu_layers="all")
    part = load_on(gpu.flag, gpu_layers=str(n_part_of(whole)))
    assert part.model.n_offloaded == part.facts.offload.gpu_layers == n_part_of(whole)
    # The output layer is the first that goes there, and has no attention.
    assert (part.facts.resident, part.facts.attention) == (False, "both" if n_part_of(whole) > 1 else "cpu")
    assert 0 < on_gpu_bytes(gpu, part) < on_gpu_bytes(gpu, whole)
    assert part.facts.memory_bytes == on_gpu_bytes(gpu, part)


def test_none_of_the_weights_is_on_the_gpu_when_no_layer_is_asked_for(gpu: Device, load_on: LoadOn) -> None:
    loaded = load_on(gpu.flag, gpu_layers="0")
    assert loaded.model.n_offloaded == 0
    assert loaded.model.sizes.on_device(gpu.name) == 0
    assert (loaded.facts.resident, loaded.facts.attention) == (False, "cpu")


# ── what it computes ─────────────────────────────────────────────────────────────────────────────


def test_its_greedy_answers_are_the_cpus_up_to_a_near_tie(
    gpu: Device, load_on: LoadOn, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu = answers(load_on("cpu").runner, PROMPTS)
    whole = load_on(gpu.flag, gpu_layers="all")
    part = load_on(gpu.flag, gpu_layers=str(n_part_of(whole)))
    for layers, loaded in (("all", whole), (str(n_part_of(whole)), part)):
        turns = first_turns(on_cpu, answers(loaded.runner, PROMPTS))
        with capsys.disabled():
            for turn in turns:
                sys.stdout.write(f"\n{gpu.flag}, {layers} layers: {turn}\n")
        assert all(turn.margin < NEAR for turn in turns), turns


def test_its_logits_are_the_cpus_within_the_bound_of_a_backend(
    gpu: Device, model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bound is that of `parity run`, in its table of sources."""
    kind = read_info(model_path).quant_kind
    with opened(model_path) as model:
        windows = [Window("short", tuple(model.tokenize(corpus.text())[:N_COMPARED]))]
    on_cpu = compute(model_path, as_served(), windows, folder=tmp_path / "cpu", n_threads=2)
    on_gpu = compute(model_path, as_served(), windows, folder=tmp_path / "gpu", n_threads=2, device=gpu)
    found = on_gpu.against(on_cpu.logits)
    with capsys.disabled():
        sys.stdout.write(f"\n{gpu.flag}: KL {found.kl_mean.text()}, largest error {found.max_error:.2g}\n")
    keys = (f"sources.step.backend.{name}.kl_mean" for name in (f"{gpu.backend}.{kind}", "other"))
    check = Bounds.load().check("mean KL", found.kl_mean.value, *keys)
    assert check.holds, check


# ── what the worker says of it ───────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_a_worker_serves_on_it_and_says_so(gpu: Device, model_path: Path) -> None:
    flags = ("--port", "0", "--threads", "2", "--ctx-size", str(1024), "--parallel", "2")
    where = ("--device", str(gpu.flag), "--gpu-layers", "all", "--require-full-offload")
    with WorkerProcess("--model", str(model_path), *flags, *where) as worker:
        health = worker.ready().health()
        assert (health["status"], health["resident"], health["attention"]) == ("healthy", True, "gpu")
        assert health["vram_bytes"] == health["vram_bytes_used"] == health["memory_bytes"] > 0
        events = worker.run(prompt=PROMPTS[0], max_tokens=8)
        check_order(events)
        assert text_of(events)
        worker.terminate()
        assert worker.exit_code() == 0
