"""The interface between the engine and a backend: steps go in, drawn tokens come out; and what loading one gives.

step.py has the steps. There are two backends: llama/runner.py with llama/kv.py, and the tests' readable fake.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import msgspec

from worker.config.engine_settings import Configure
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens
from worker.engine.step import Constraint, Sampled, Score, Step
from worker.limits import MAX_HIDDEN_ROWS
from worker.wire.jobs import Logprob, Prompt, SlotId, Submit, TokenId
from worker.wire.load import Loaded, Residency, RowCosts
from worker.wire.messages import Violation


class Saved(Protocol):
    """KV cells of consecutive positions, copied out of the slots' memory. It is freed with its last reference."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    def split(self, n_tokens: int) -> tuple["Saved", "Saved"]:
        """Return the first `n_tokens` and the rest as two copies that are freed separately; 0 < n_tokens < its own."""


class Checkpoint(Protocol):
    """The recurrent state of a sequence after its first `n_tokens`, copied out; it cannot be cut."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...


class Kv(Protocol):
    """The slots' memory of computed tokens."""

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Free the slot's cells from position n_keep on; 0 empties it. Other slots keep cells that they share."""

    @property
    def n_free_cells(self) -> int:
        """The number of cells that no slot holds."""

    @property
    def can_share(self) -> bool:
        """True if the first cells of a slot can be another's too. If not, `share`, `save` and `load` are refused."""

    @property
    def has_state(self) -> bool:
        """True if a slot has a recurrent state beside its cells, or instead. Then `trim` empties a slot or keeps all of
        it but `max_undone` tokens, and a slot can begin only where there is a checkpoint."""

    @property
    def max_undone(self) -> int:
        """The most tokens that `trim` can take from a slice that a step has just computed, but for its first, even if
        the memory cannot be cut elsewhere; 0 if none. With a state, only from the last slices, if they are of one
        length.
        """

    def checkpoint(self, slot: SlotId, tokens: Seq[TokenId] = ()) -> Checkpoint:
        """Copy the slot's state, which is the one after all of its cells. `tokens` are those of the cells, if the copy
        is to outlive this process.
        """

    def share(self, source: SlotId, target: SlotId, n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Give the empty slot `target` the first n_tokens cells of `source`; they take no room. Its state is that of
        the checkpoint, which is needed if `source` has more cells.
        """

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        """Return how many cells these slots hold and no other does; a cell that several of them share counts once."""

    def save(self, slot: SlotId, start: int, tokens: Seq[TokenId] = (), *, end: int | None = None) -> Saved:
        """Copy the slot's cells [start, end), which are not empty; without `end` up to its last. `tokens` are those of
        the cells [0, end), if the copy is to outlive this process.
        """

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Fill the empty slot with the first n_tokens of the parts, in order, and with the state after them.

        The caller has checked `n_free_cells`. The parts stay their owner's.
        """

    def count_tokens(self) -> list[int]:
        """Return how many tokens each slot has. Raises: KvMismatch if the counts that are kept of them differ."""


Meanwhile = Callable[[], None]
"""The work that is done while a device computes a step."""


def do_nothing() -> None:
    """The `Meanwhile` of a step that nothing waits for."""


class Runner(Protocol):
    """Runs steps, which fill its memory."""

    @property
    def kv(self) -> Kv: ...

    @property
    def n_threads(self) -> int:
        """The number of threads that compute now."""

    @property
    def can_abort(self) -> bool:
        """True if `request_abort` stops a running step."""

    @property
    def is_asynchronous(self) -> bool:
        """True if a device computes steps while this process does something else."""

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        """Decode the step and draw for every slice that has `sampling`, in the order of slices: one token, and one more
        for each draft token that was drawn. All of a slice's tokens are kept, wrong drafts too; the caller trims these.
        A slice with `scoring` is scored before it draws; if it cannot be, it gives one Sampled with the error.

        `meanwhile` is called once the device computes, if it `is_asynchronous`, unless the step fails before that.

        Raises: NoRoom, BadBatch: nothing of the step was kept. Aborted: a part may be kept; call `kv.trim` first.
        Scores may be there in any case, and are right even if the cells are not kept. Any other exception is fatal for
        the process.
        """

    def logprob(self, score: Score, n_top: int) -> Logprob:
        """Return the log-probability of a score, with the `n_top` ≤ MAX_TOPS most probable tokens."""

    def request_abort(self) -> None:
        """Ask a running step to stop early, from any thread. This has no effect if it cannot."""

    def forget_abort(self) -> None:
        """Withdraw `request_abort`. This is called before each step."""


class KvMismatch(Exception):
    """Two counts of the same cells differ. This is fatal for the process, because answers would be wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """The saved cells of finished jobs that earlier engines have left."""

    parts: Seq[tuple[list[TokenId], Saved]]
    """Cells, and all tokens from position 0 to their last; a prefix comes before its continuation."""
    n_dropped: int = 0
    """The number of further parts that were there and cannot be trusted."""
    dropped_because: str | None = None
    """The reason for the first of these."""
    checkpoints: Seq[tuple[list[TokenId], Checkpoint]] = ()
    """Recurrent states, and all tokens before them; the shortest come first."""


class Read(msgspec.Struct, frozen=True):
    """A prompt as the model reads it."""

    tokens: list[TokenId]
    text: str | None
    """The text that was read; None if the prompt was tokens."""


class Prompts(Protocol):
    """Turns prompts into tokens and back, on the intake thread (llama/tokenizer.py)."""

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        """Return the tokens of a prompt of any length, or why it has none. The flags are those of Tokenize."""

    def detokenize(self, tokens: Seq[TokenId]) -> str | Violation:
        """Return the text of the tokens, special ones by their names; U+FFFD stands for bytes of no whole character."""


class HiddenRows:
    """The positions [begin, end) of each slot that have a hidden row, the last layer's output, at most MAX_HIDDEN_ROWS.
    The model's next-token head reads a token and the row of the token before it. Its cells of a slot begin with a token
    of the text, whose position is in `firsts`."""

    def __init__(self) -> None:
        self._spans: defaultdict[SlotId, range] = defaultdict(lambda: range(0))
        self.firsts: defaultdict[SlotId, int] = defaultdict(int)

    def add(self, slot: SlotId, end: int, n_rows: int) -> None:
        """Count the rows of the positions before `end`, which were computed now. Those of later positions are of other
        tokens; those of earlier ones stay if none is missing between."""
        begin, span = end - n_rows, self._spans[slot]
        start = span.start if span.start <= begin <= span.stop else begin
        self._spans[slot] = range(max(start, end - MAX_HIDDEN_ROWS), end)

    def forget(self, slot: SlotId) -> None:
        """Drop all rows of a slot, which has another text now."""
        self._spans.pop(slot, None)

    def has(self, slot: SlotId, position: int) -> bool:
        return position in self._spans[slot]

    def kept(self, slot: SlotId, n_tokens: int) -> range:
        """Drop the rows from position n_tokens on, which are of wrong drafts. Return the positions that have a row."""
        span = self._spans[slot]
        end = min(span.stop, n_tokens)
        self._spans[slot] = range(min(span.start, end), end)
        return self._spans[slot]


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model: its runner, with a slot for each slot of jobs, and the costs of its decode steps, ascending."""

    runner: Runner
    row_costs: RowCosts
    hidden: HiddenRows | None = None
    """The rows that it reads, if it is the model's own head."""
    min_probability: float = 0.5
    """A draft ends before a token that the draft model finds less likely. On two cores a further row costs half a step,
    and so does drafting it; a token that is wrong more often than right costs more than it wins there."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model, and the facts to report."""

    runner: Runner
    prompts: Prompts
    constrain: Callable[[Submit], Constraint | Violation | None]
    """It returns a fresh constraint for a job that asks for one, or why there is none, on the intake thread."""
    facts: Loaded
    marks: ControlTokens = NO_CONTROL_TOKENS
    give_back: Callable[[], None] = lambda: None
    """It returns freed memory to the system. It is called while no job is there."""
    widest_step: int = 0
    """The number of tokens of a prefill step while no job generates; 0 means the chunk."""
    retained_slots: tuple[SlotId, ...] = ()
    """Slots beyond those for jobs, which keep the cells of finished jobs; on a CPU until they are copied out."""
    max_dead_cells: int = 0
    """The most cells that retained slots alone may hold while jobs run; 0 on a CPU."""
    draft: LoadedDraft | None = None
    message_ends: frozenset[TokenId] = frozenset()
    """The tokens that end a message in a prompt, as they end an answer."""
    residency: Callable[[], Residency] | None = None
    """It reports where the model is now, from any thread; None on a CPU, whose memory a model cannot leave."""
    find: Callable[[Callable[[Found], None]], None] | None = None
    """It is called once, reports what earlier engines have saved, on a thread of its own, and waits a moment for that.
    None: nothing outlives this engine."""
    flush: Callable[[float], None] | None = None
    """It waits at most so many seconds until everything that is to outlive the worker is written, from any thread.
    None: nothing outlives it."""


Load = Callable[[Configure, Callable[[int], None]], LoadedModel]
"""(config, on_progress(percent)) → a model ready to run. Raises: StartupError."""
