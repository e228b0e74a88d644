"""One real model for all tests of the room; contexts are cheap and made per test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from parity.setups import cpu
from tests.llama.random_models import Kind, write_random
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from tools import made_architectures
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.engine.step import Slice
from worker.llama.context import Context
from worker.llama.model import Model
from worker.llama.repack import may_repack
from worker.llama.runner import LlamaRunner
from worker.models.facts.info import read_info
from worker.models.loading.places import DryRun
from worker.models.plan.memory import plan_of
from worker.models.plan.placement import Group, InMain, spread
from worker.wire.jobs import SamplingParams, SlotId, TokenId

GREEDY = SamplingParams(seed=0, temperature=0.0)

MakeContext = Callable[..., Context]
LoadRandom = Callable[[Kind], Model]
LoadMade = Callable[[made_architectures.Kind], Model]
K = TypeVar("K")


PLENTY = 1 << 45


def weights_in_main(path: Path, *, keeps_bits: bool = False) -> InMain:
    """The weights in main memory if no layer is on a GPU."""
    info = read_info(path)
    config = configure(Settings(device="cpu"), path)
    dry_run = DryRun(PLENTY, repacks=may_repack([info], keeps_bits=keeps_bits))
    need = dry_run(config, info, Group((cpu(),), ()), 0, plan_of(config, info, 256))
    return spread(info, need.buffers, ())[0]


@dataclass(frozen=True)
class Loaded:
    model: Model
    percents: list[int]


@pytest.fixture(scope="session")
def loaded(model_path: Path) -> Iterator[Loaded]:
    percents: list[int] = []
    planned = weights_in_main(model_path)
    with Model.load(
        model_path,
        device=cpu(),
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


def context_on(model: Model, **changes: int | str) -> Context:
    """A context of two slots and 512 cells unless asked otherwise; the model closes it."""
    sizes: dict[str, int | str] = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 64, "n_seq_max": 2}
    threads: dict[str, int | str] = {"n_threads": 1, "n_threads_batch": 1}
    return Context(model, **{**sizes, **threads, **changes})  # type: ignore[arg-type]  # mixed on purpose


@pytest.fixture
def make_context(model: Model) -> Iterator[MakeContext]:
    """The same, on the default model unless asked otherwise, closed after the test."""
    made: list[Context] = []

    def make(on: Model = model, **changes: int | str) -> Context:
        made.append(context_on(on, **changes))
        return made[-1]

    yield make
    for context in made:
        context.close()


@pytest.fixture
def runner(model: Model, make_context: MakeContext) -> LlamaRunner:
    return LlamaRunner(model, make_context())


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Model]:
    with loaded_on_cpu(write_tiny(tmp_path / "tiny.gguf")) as model:
        yield model


@pytest.fixture
def model_of_nan(tmp_path: Path) -> Iterator[Model]:
    """The tiny model with weights that are no numbers, and so no logit is one."""
    with loaded_on_cpu(write_tiny(tmp_path / "nan.gguf", weight=float("nan"))) as model:
        yield model


@pytest.fixture(scope="session")
def load_random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadRandom]:
    """The random model of a kind, each loaded once."""
    with each_once(tmp_path_factory, write_random) as load:
        yield load


@pytest.fixture(scope="module")
def load_made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadMade]:
    """The made model of a kind, each loaded once in a module."""
    with each_once(tmp_path_factory, made_architectures.write_kind) as load:
        yield load


@contextmanager
def each_once(
    folders: pytest.TempPathFactory, write: Callable[[Path, K], Path], *, loads_heads: bool = False
) -> Iterator[Callable[[K], Model]]:
    """Kinds of different names are different models."""
    loaded: dict[str, Model] = {}

    def load(kind: K) -> Model:
        if str(kind) not in loaded:
            path = write(folders.mktemp("kind") / "kind.gguf", kind)
            loaded[str(kind)] = loaded_on_cpu(path, loads_heads=loads_heads)
        return loaded[str(kind)]

    try:
        yield load
    finally:
        for model in loaded.values():
            model.close()


def slice_of(slot: int, start: int, tokens: list[TokenId], sampling: SamplingParams | None = GREEDY) -> Slice:
    return Slice(SlotId(slot), start, tokens, sampling)


def fill(context: Context, slot: int, n_tokens: int) -> None:
    """Give a slot more cells, at most a batch at a time."""
    for _ in range(0, n_tokens, context.n_batch):
        held = context.kv.n_cells(SlotId(slot))
        n = min(context.n_batch, n_tokens)
        n_tokens -= n
        context.decode([slice_of(slot, held, [TokenId(9 + (held + i) % 200) for i in range(n)], None)])
