"""A real engine process around the readable fake backend: real sockets, threads and signals, no model, loaded at once.

    python -m tests.toy_engine FD GENERATION

`Configure.model_path` says what it is like: TOY; LOUD: each token is 64 KiB of text; BROKEN: its first step raises;
UNLOADABLE, TOO_BIG: it cannot be loaded.
"""

from collections.abc import Callable

from msgspec.structs import replace

from tests.engine.fake_runner import N_VOCAB, FakeRunner, ToyModel
from tests.rehearsal import FACTS
from worker.engine.backend import LoadedModel, Sampled, Step
from worker.engine.contract import Configure, TokenId
from worker.engine_process import main
from worker.errors import InsufficientMemory, ModelLoadFailed

TOY, LOUD, BROKEN, UNLOADABLE, TOO_BIG = "toy", "loud", "broken", "unloadable", "too big"

LOUD_BYTES = 64 * 1024


class LoudRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        return [replace(sampled, piece=b"x" * LOUD_BYTES) for sampled in super().run(step)]


class BrokenRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        raise RuntimeError("llama_decode failed with code -3")


RUNNERS = {TOY: FakeRunner, LOUD: LoudRunner, BROKEN: BrokenRunner}


def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    on_progress(0)
    if config.model_path == UNLOADABLE:
        raise ModelLoadFailed("the toy is unloadable")
    if config.model_path == TOO_BIG:
        raise InsufficientMemory("the toy is too big", needed_bytes=8, available_bytes=4)
    on_progress(100)
    runner = RUNNERS[config.model_path](
        ToyModel(), n_slots=FACTS.parallel, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk
    )
    return LoadedModel(runner, tokenize, lambda _: None, FACTS)


def tokenize(text: str) -> list[TokenId]:
    return [TokenId(byte % N_VOCAB) for byte in text.encode()]


if __name__ == "__main__":
    main(load)
