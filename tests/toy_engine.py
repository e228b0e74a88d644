"""A real engine process around the readable fake backend: real sockets, threads and signals, no model, loaded at once.

    python -m tests.toy_engine FD GENERATION

`Configure.model_path` says what it is like: TOY, as any file is; LOUD: each token is 64 KiB of text; BROKEN: its first
step raises; LEAVING: it lies on a GPU, and no more from the second question on; UNLOADABLE, TOO_BIG, STARVED: it
cannot be loaded; DIFFERING: its self-test finds that answers depend on the jobs beside them; UNTESTABLE: its self-test
finds nothing out.
"""

from collections.abc import Callable, Generator
from itertools import chain, repeat

from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner, ToyModel
from tests.engine.toy_constraint import N_VOCAB
from tests.front.rehearsal import FACTS
from worker.engine.backend import LoadedModel, Sampled, Step
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.process.main import main
from worker.wire.messages import Configure, Residency, SelfTested, TokenId

TOY, LOUD, BROKEN, LEAVING, UNLOADABLE, TOO_BIG = "toy", "loud", "broken", "leaving", "unloadable", "too big"
STARVED, DIFFERING, UNTESTABLE = "starved", "differing", "untestable"
FOUND = SelfTested(is_same=False, differences=("in decode steps of 2 to 8 rows", "beside 7 others"))

ON_A_GPU = replace(FACTS, backend="cuda", memory_architecture="vram-only", memory_bytes=1000)
THERE, GONE = Residency(is_resident=True, memory_bytes=1000), Residency(is_resident=False, memory_bytes=30)

LOUD_BYTES = 64 * 1024


class LoudRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        return [replace(sampled, piece=b"x" * LOUD_BYTES) for sampled in super().run(step)]


class BrokenRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        raise RuntimeError("llama_decode failed with code -3")


RUNNERS = {TOY: FakeRunner, LOUD: LoudRunner, BROKEN: BrokenRunner, LEAVING: FakeRunner, DIFFERING: FakeRunner}


def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    on_progress(0)
    if config.model_path == UNLOADABLE:
        raise ModelLoadFailed("the toy is unloadable")
    if config.model_path == TOO_BIG:
        raise InsufficientMemory("the toy is too big", needed_bytes=8, available_bytes=4)
    if config.model_path == STARVED:
        raise ImportError("a page of advice") from OSError("failed to map segment\nfrom shared object")
    on_progress(100)
    runner = RUNNERS.get(config.model_path, FakeRunner)(
        ToyModel(), n_slots=FACTS.parallel, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk
    )
    if config.model_path == LEAVING:
        answers = chain([THERE], repeat(GONE))
        return LoadedModel(runner, tokenize, lambda _: None, ON_A_GPU, residency=lambda: next(answers))
    self_test = {DIFFERING: differing, UNTESTABLE: untestable}.get(config.model_path)
    return LoadedModel(runner, tokenize, lambda _: None, FACTS, self_test=self_test)


def untestable() -> Generator[SelfTested | None, None, None]:
    yield None


def differing() -> Generator[SelfTested | None, None, None]:
    yield None
    yield FOUND


def tokenize(text: str) -> list[TokenId]:
    return [TokenId(byte % N_VOCAB) for byte in text.encode()]


if __name__ == "__main__":
    main(load)
