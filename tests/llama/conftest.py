"""One real model for all tests of the room; contexts are cheap and made per test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.llama.in_main import weights_in_main
from tests.llama.random_models import Kind, write_random
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from tools import made_architectures
from worker.engine.step import Slice
from worker.llama.context import Context
from worker.llama.devices import devices
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.models.plan.devices import choose_device
from worker.wire.jobs import SamplingParams, SlotId, TokenId

GREEDY = SamplingParams(seed=0, temperature=0.0)

MakeContext = Callable[..., Context]
LoadRandom = Callable[[Kind], Model]
LoadMade = Callable[[made_architectures.Kind], Model]
K = TypeVar("K")


@dataclass(frozen=True)
class Loaded:
    model: Model
    percents: list[int]


@pytest.fixture(scope="session")
def loaded(model_path: Path) -> Iterator[Loaded]:
    percents: list[int] = []
    cpu = choose_device("cpu", devices())
    planned = weights_in_main(model_path)
    with Model.load(
        model_path,
        device=cpu,
        n_gpu_layers=0,
        on_progress=percents.append,
        is_mapped=planned.is_mapped,
        may_repack=planned.repacked > 0,
    ) as model:
        yield Loaded(model, percents)


@pytest.fixture
def model(loaded: Loaded) -> Model:
    return loaded.model


@pytest.fixture(scope="session")
def shallow(shallow_model: Path) -> Iterator[Model]:
    """A layer is computed by the same kernels in whatever depth."""
    with loaded_on_cpu(shallow_model) as model:
        yield model


@pytest.fixture
def make_context(model: Model) -> Iterator[MakeContext]:
    """A context of two slots and 512 cells unless asked otherwise; closed after the test."""
    made: list[Context] = []

    def make(on: Model = model, **changes: int | str) -> Context:
        sizes: dict[str, int | str] = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 64, "n_seq_max": 2}
        threads: dict[str, int | str] = {"n_threads": 1, "n_threads_batch": 1}
        made.append(Context(on, **{**sizes, **threads, **changes}))  # type: ignore[arg-type]  # mixed on purpose
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def runner(model: Model, make_context: MakeContext) -> LlamaRunner:
    return LlamaRunner(model, make_context())


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Model]:
    path = write_tiny(tmp_path / "tiny.gguf")
    with loaded_on_cpu(path) as model:
        yield model


@pytest.fixture
def model_of_nan(tmp_path: Path) -> Iterator[Model]:
    """The tiny model with weights that are no numbers, and so no logit is one."""
    path = write_tiny(tmp_path / "nan.gguf", weight=float("nan"))
    with loaded_on_cpu(path) as model:
        yield model


@pytest.fixture(scope="session")
def load_random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadRandom]:
    """The random model of a kind, each loaded once."""
    with _each_once(tmp_path_factory, write_random) as load:
        yield load


@pytest.fixture(scope="module")
def load_made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadMade]:
    """The made model of a kind, each loaded once in a module."""
    with _each_once(tmp_path_factory, made_architectures.write_kind) as load:
        yield load


@contextmanager
def _each_once(folders: pytest.TempPathFactory, write: Callable[[Path, K], Path]) -> Iterator[Callable[[K], Model]]:
    """Kinds of different names are different models."""
    loaded: dict[str, Model] = {}

    def load(kind: K) -> Model:
        if str(kind) not in loaded:
            loaded[str(kind)] = loaded_on_cpu(write(folders.mktemp("kind") / "kind.gguf", kind))
        return loaded[str(kind)]

    try:
        yield load
    finally:
        for model in loaded.values():
            model.close()


def slice_of(slot: int, start: int, tokens: list[TokenId], sampling: SamplingParams | None = GREEDY) -> Slice:
    return Slice(SlotId(slot), start, tokens, sampling)
