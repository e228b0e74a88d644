"""What the engine asks of a backend: steps in, drawn tokens out; and what loading one gives.

Owns the step vocabulary and the `Runner` seam. Knows nothing of frames' bytes, llama.cpp or numpy. Two backends:
llama/runner.py and the tests' readable fake.
"""

from collections.abc import Callable, Collection, Generator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NewType, Protocol

import msgspec

from worker.engine.channels import NO_MARKS, Marks
from worker.wire.messages import (
    Configure,
    Loaded,
    Logprob,
    Prompt,
    Residency,
    RowCosts,
    Sampling,
    SelfTested,
    SlotId,
    StepKind,
    Submit,
    TokenId,
    Violation,
)

MAX_TOPS = 20
"""How many of the most probable tokens each score has, however many the job wants: later jobs may want more."""


class Token(msgspec.Struct, frozen=True):
    """A token and its raw bytes."""

    id: TokenId
    piece: bytes


class Constraint(Protocol):
    """A grammar at one point of one job's text. Who holds it closes it; the runner knows what else it can do."""

    def end_within(self, n_tokens: int) -> None:
        """The text has so many tokens at most. Told once, before the first."""
        ...

    def accept(self, token: TokenId) -> None:
        """Go on by a token that was drawn under this constraint and does not end the job."""
        ...

    def take_forced(self, n_enough: int) -> Seq[Token]:
        """Go on by the tokens that must come next, and return them; empty where there is a choice, or an end. There may
        be no last one, so the search ends with `n_enough` tokens or a few more.
        """
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow but an end."""
        ...

    def n_allowed(self, tokens: Seq[TokenId]) -> int:
        """How many of the tokens, from the first on, the text may go on by."""
        ...

    def close(self) -> None:
        """Free what it holds. Idempotent."""
        ...


Score = NewType("Score", bytes)
"""What a token of a prompt was worth to the model, and which tokens were worth most: what `Runner.logprob` reads."""


class Scoring(msgspec.Struct, frozen=True):
    """The log-probabilities that a slice is to give."""

    targets: Seq[TokenId]
    """The tokens that follow the slice's first ones: as many as the slice has, or one less where it ends the prompt."""
    scores: list[Score]
    """The sequence's own, by position; the step replaces what it has behind the slice's first token."""


class Slice(msgspec.Struct, frozen=True):
    """A slot's part of a step: `tokens` go to positions [start, start + len(tokens)).

    `sampling` is set when a token is to be drawn after the last of them; `generated` is then the job's
    tokens so far (owned by the sequence, read during the step only), and `constraint` filters the draw.
    The last `n_drafts` tokens are a draft: a token is drawn after the one before them, and after each of them for as
    long as the draws agree with the draft. `forced` is the token that comes next whatever the logits are, where only
    its log-probability is wanted. `scoring` is set where log-probabilities of the prompt are wanted; the slice then has
    no drafts.
    """

    slot: SlotId
    start: int
    tokens: Seq[TokenId]
    sampling: Sampling | None = None
    generated: Seq[TokenId] = ()
    constraint: Constraint | None = None
    n_drafts: int = 0
    forced: Token | None = None
    scoring: Scoring | None = None

    @property
    def n_rows(self) -> int:
        """How many rows of logits it needs, of its last tokens. Where it scores, all of them, also one that nobody
        reads: how a row is computed may depend on their number, and that is to depend on the prompt alone.
        """
        if self.scoring is not None:
            return len(self.tokens)
        return 0 if self.sampling is None else self.n_drafts + 1


class Saved(Protocol):
    """KV cells of consecutive positions, copied out of the slots' memory; one owner. Freed with its last reference."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    def split(self, n_tokens: int) -> tuple["Saved", "Saved"]:
        """The first `n_tokens` and the rest, 0 < n_tokens < its own, as copies that can be freed apart."""
        ...


class Step(msgspec.Struct, frozen=True):
    """One llama_decode: either prefill slices or decoding slots' tokens, never mixed (stable shapes)."""

    kind: StepKind
    slices: tuple[Slice, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(slice_.tokens) for slice_ in self.slices)

    @property
    def depth(self) -> float:
        """How many cells of its own slot a token has before it, on average."""
        looks = sum(len(slice_.tokens) * (slice_.start + len(slice_.tokens) / 2) for slice_ in self.slices)
        return looks / self.n_tokens


class Sampled(msgspec.Struct, frozen=True):
    """What a slot drew: the token, its raw bytes (control tokens: empty), and whether it ends generation."""

    slot: SlotId
    token: TokenId
    piece: bytes
    is_end: bool
    error: str | None = None
    """Why nothing could be drawn (the logits are not numbers); the token means nothing then."""
    logprob: Logprob | None = None


class Kv(Protocol):
    """The slots' memory of computed tokens. Two implementations: llama/kv.py and the tests' readable fake."""

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Forget the slot's cells from position n_keep on; 0 empties it. What other slots share stays theirs."""
        ...

    @property
    def n_free_cells(self) -> int:
        """Cells that no slot holds."""
        ...

    @property
    def can_share(self) -> bool:
        """Whether the model's memory can be cut at any position; without it `share`, `save` and `load` are refused."""
        ...

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        """Give the empty slot `target` the first n_tokens cells of `source`; they take no room."""
        ...

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        """Cells that these slots hold and no other does; one that several of them share counts once."""
        ...

    def save(self, slot: SlotId, start: int, tokens: Seq[TokenId] = (), *, end: int | None = None) -> Saved:
        """A copy of the slot's cells [start, end), of which there are some; without `end` to its last. `tokens`: what
        the cells [0, end) are of, where the copy is to outlive this process.
        """
        ...

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int) -> None:
        """Fill the empty slot with the first n_tokens of what the parts, one behind the other, hold.

        There are `n_free_cells` enough. The parts stay their owner's.
        """
        ...

    def count_tokens(self) -> list[int]:
        """How many tokens each slot has, by all who keep count of them. Raises: KvMismatch where they do not agree."""
        ...


Meanwhile = Callable[[], None]
"""What is done while a device computes a step."""


def do_nothing() -> None:
    """There is nothing to do while a step runs."""


class Runner(Protocol):
    """Runs steps. Two implementations: llama/runner.py and the tests' readable fake."""

    @property
    def kv(self) -> Kv:
        """The memory that the steps fill."""
        ...

    @property
    def n_threads(self) -> int:
        """How many threads compute now."""
        ...

    @property
    def can_abort(self) -> bool:
        """True if `request_abort` stops a running step."""
        ...

    @property
    def is_asynchronous(self) -> bool:
        """True if a device computes steps while this process does something else."""
        ...

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        """Decode the step and draw for every slice that has `sampling`, in slice order: one token, and one more for
        each draft token that was drawn. All of a slice's tokens are kept, also wrong drafts: `kv.trim` these. A slice
        with `scoring` is scored before it draws; where that is impossible, it gives one Sampled with the error.

        `meanwhile` is called once the device computes, if it `is_asynchronous`; not where the step fails before that.

        Raises: NoRoom, BadBatch: nothing of the step was kept. Aborted: part may be kept; `kv.trim` first. Scores may
        be there in any case; they are right, whatever becomes of the cells.
        Any other exception is fatal for the process.
        """
        ...

    def logprob(self, score: Score, n_top: int) -> Logprob:
        """What a score says, with so many of the most probable tokens, at most MAX_TOPS."""
        ...

    def request_abort(self) -> None:
        """Ask a running step to stop early; from any thread. Has no effect where it cannot."""
        ...

    def forget_abort(self) -> None:
        """Withdraw `request_abort`; called before each step."""
        ...


class KvMismatch(Exception):
    """Two who keep count of the same cells have different numbers. Fatal for the process: answers would be wrong."""


class StepFailed(Exception):
    """Base of the outcomes of a step that did not happen."""


class NoRoom(StepFailed):
    """llama_decode 1: no cells for the batch."""


class Aborted(StepFailed):
    """llama_decode 2: stopped by request_abort."""


class BadBatch(StepFailed):
    """llama_decode -1: some slice is invalid."""


@dataclass(frozen=True, slots=True)
class Found:
    """What engines before this one have left of ended jobs."""

    parts: Seq[tuple[list[TokenId], Saved]]
    """Cells, and all tokens from position 0 to their last; those of a beginning come before what follows it."""
    n_dropped: int = 0
    """How many more were there and cannot be believed."""
    dropped_because: str | None = None
    """Of the first of these."""


SelfTest = Callable[[], Generator[SelfTested | None, None, None]]


class Read(msgspec.Struct, frozen=True):
    """What a prompt is to the model."""

    tokens: list[TokenId]
    text: str | None
    """What was read; None where it was tokens."""


class Prompts(Protocol):
    """Prompts to tokens and back, called on the intake thread. Two implementations: llama/prompts.py and the tests'
    readable fake."""

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        """The tokens of a prompt of any length, or why it has none. The flags are Tokenize's."""
        ...

    def detokenize(self, tokens: Seq[TokenId]) -> str | Violation:
        """The text of the tokens, special ones by their names; U+FFFD for bytes that are no whole character."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model: its steps, with a slot for each of the jobs', and what those of decoding cost, ascending."""

    runner: Runner
    row_costs: RowCosts


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What loading gives: steps, prompts, constraints, and the facts to report."""

    runner: Runner
    prompts: Prompts
    constrain: Callable[[Submit], Constraint | Violation | None]
    """A fresh constraint for a job that asks for one, or why there is none. Called on the intake thread."""
    facts: Loaded
    marks: Marks = NO_MARKS
    """The vocabulary's control tokens."""
    widest_step: int = 0
    """How many tokens a prefill step has while nobody generates; 0 means the chunk."""
    retained_slots: tuple[SlotId, ...] = ()
    """Slots beyond those for jobs, where ended jobs' cells stay: on a CPU until they are copied out."""
    most_dead_cells: int = 0
    """The most cells that retained slots alone may hold while jobs run; 0 on a CPU."""
    self_test: SelfTest | None = None
    """Runs on the step thread while no slot holds a cell. Each `next` runs a part and gives None, the last one the
    result. Closed early or not, it leaves the memory as new."""
    draft: LoadedDraft | None = None
    residency: Callable[[], Residency] | None = None
    """Where the model is now, from any thread; None on a CPU, whose memory it cannot leave."""
    find: Callable[[Callable[[Found], None]], None] | None = None
    """Called once: tells what engines before this one have kept, on a thread of its own, and waits a moment for that.
    None: nothing outlives this one."""
    flush: Callable[[float], None] | None = None
    """Waits so many seconds until all that is to outlive the worker is written; None: nothing is. From any thread."""


Load = Callable[[Configure, Callable[[int], None]], LoadedModel]
"""(config, on_progress(percent)) → a model ready to run. Raises: StartupError."""
