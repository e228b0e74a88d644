"""A real engine process around the readable fake backend: real sockets, threads and signals, no model, loaded at once.

    python -m tests.toy_engine FD GENERATION

`Configure.model_path` says what it is like: TOY, as any file is; LOUD: each token is 64 KiB of text; BROKEN: its first
step raises; LEAVING: it lies on a GPU, and no more from the second question on; UNLOADABLE, TOO_BIG, STARVED: it
cannot be loaded; DIFFERING: its self-test finds that answers depend on the jobs beside them; UNTESTABLE: its self-test
finds nothing out; KEEPING: what it keeps outlives it, and it has found something; SLOW: steps that read a long prompt
go on until one is stopped.
"""

import sys
import threading
from collections.abc import Callable, Generator, Sequence
from itertools import chain, repeat

import msgspec
from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner, ToyModel
from tests.engine.toy_constraint import N_VOCAB
from tests.front.rehearsal import FACTS
from worker.engine.backend import Found, Load, LoadedModel, Read, Sampled, Step
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.process.main import main
from worker.wire.messages import Configure, Conversation, Prompt, Residency, SelfTested, SlotId, TokenId, Violation

TOY, LOUD, BROKEN, LEAVING, UNLOADABLE, TOO_BIG = "toy", "loud", "broken", "leaving", "unloadable", "too big"
STARVED, DIFFERING, UNTESTABLE, KEEPING, SLOW = "starved", "differing", "untestable", "keeping", "slow"
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


LONG = 256
"""The number of tokens that SLOW reads in one step, without an end if it is not stopped."""


class SlowRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        if step.n_tokens == LONG:
            assert _stopped.wait(PATIENCE_S), "the step is in somebody's way"
        return super().run(step)

    def request_abort(self) -> None:
        super().request_abort()
        _stopped.set()


_stopped = threading.Event()
PATIENCE_S = 60.0

RUNNERS = {
    TOY: FakeRunner,
    LOUD: LoudRunner,
    BROKEN: BrokenRunner,
    LEAVING: FakeRunner,
    DIFFERING: FakeRunner,
    SLOW: SlowRunner,
}


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
        ToyModel(), n_slots=FACTS.parallel, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk, widest_step=LONG
    )
    if config.model_path == SLOW:
        return LoadedModel(runner, ToyPrompts(), lambda _: None, replace(FACTS, step_s=10.0), widest_step=LONG)
    if config.model_path == LEAVING:
        answers = chain([THERE], repeat(GONE))
        return LoadedModel(runner, ToyPrompts(), lambda _: None, ON_A_GPU, residency=lambda: next(answers))
    if config.model_path == KEEPING:
        return keeping()
    self_test = {DIFFERING: differing, UNTESTABLE: untestable}.get(config.model_path)
    return LoadedModel(runner, ToyPrompts(), lambda _: None, FACTS, self_test=self_test)


def keeping() -> LoadedModel:
    """Its last words are how many cells had been copied out when it was asked to write what is left."""
    runner = FakeRunner(ToyModel(), n_slots=FACTS.parallel + 1, n_cells=FACTS.n_cells, chunk=FACTS.prefill_chunk)

    def flush(_timeout_s: float) -> None:
        sys.stderr.write(f"{runner.kv.n_saved} cells are kept")
        sys.stderr.flush()

    return LoadedModel(
        runner,
        ToyPrompts(),
        lambda _: None,
        FACTS,
        retained_slots=(SlotId(FACTS.parallel),),
        find=lambda tell: tell(Found((), 3, "they were broken")),
        flush=flush,
    )


def load_with(kind: type[FakeRunner]) -> Load:
    """`load`, whose runner is of this kind and has what the toy's has."""

    def load_it(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
        loaded = load(config, on_progress)
        assert type(loaded.runner) is FakeRunner
        loaded.runner.__class__ = kind
        return loaded

    return load_it


def untestable() -> Generator[SelfTested | None, None, None]:
    yield None


def differing() -> Generator[SelfTested | None, None, None]:
    yield None
    yield FOUND


class ToyPrompts:
    """A token for each byte; the template is the contents of the messages, one behind the other."""

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        if isinstance(prompt, str) and "unreadable" in prompt:
            return Violation("prompt", "vocabulary", "the vocabulary lacks a character")
        if isinstance(prompt, str):
            return Read([TokenId(byte % N_VOCAB) for byte in prompt.encode()], prompt)
        if isinstance(prompt, Conversation):
            messages = msgspec.json.decode(prompt.messages)
            if any("refuse me" in str(message["content"]) for message in messages):
                return Violation("messages", "chat_template", "the chat template refuses the conversation")
            return self.read("".join(str(message["content"]) for message in messages))
        return self._outside(prompt) or Read(list(prompt), None)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        return self._outside(tokens) or "".join(map(chr, tokens))

    def _outside(self, tokens: Sequence[TokenId]) -> Violation | None:
        is_inside = all(0 <= token < N_VOCAB for token in tokens)
        return None if is_inside else Violation("tokens", f"vocabulary({N_VOCAB})", "an id is outside the vocabulary")


if __name__ == "__main__":
    main(load)
