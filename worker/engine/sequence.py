"""A job in flight inside the engine: its tokens, its place, and the only legal moves between states.

Owned by the step thread. Knows nothing of the decode call, the clock or other sequences.

    WAITING ──admit──▶ PREFILL ──prompt computed──▶ DECODE
       │                  │                           │
       └──────────────────┴────────── end ────────────┴──▶ DONE
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from worker.engine.backend import Constraint, Slice
from worker.engine.contract import JobKey, Sampling, SlotId, TokenId
from worker.engine.text import TextStream


class State(Enum):
    WAITING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.DONE}),
    State.PREFILL: frozenset({State.DECODE, State.DONE}),
    State.DECODE: frozenset({State.DONE}),
    State.DONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """`max_tokens` is already cut to the room the context leaves; `is_cut` says that it was."""

    job: JobKey
    prompt: list[TokenId]
    max_tokens: int
    sampling: Sampling
    text: TextStream
    constraint: Constraint | None = None
    is_cut: bool = False
    state: State = State.WAITING
    slot: SlotId | None = None
    generated: list[TokenId] = field(default_factory=list)
    n_computed: int = 0
    """Cells this sequence fills: positions [0, n_computed)."""

    @property
    def n_reserved(self) -> int:
        """Cells set aside at admission, so that a running job can never meet a full cache."""
        return len(self.prompt) + self.max_tokens

    @property
    def is_out_of_tokens(self) -> bool:
        return len(self.generated) >= self.max_tokens

    def move(self, state: State) -> None:
        """Raises: AssertionError for a move the table above does not draw; nothing changes then."""
        assert state in LEGAL_MOVES[self.state], f"{self.state.name} -> {state.name} is not a legal move"
        self.state = state

    def prefill_slice(self, chunk: int) -> Slice:
        """The prompt's next part, up to the next absolute multiple of `chunk`; draws after the prompt's last token."""
        assert self.slot is not None
        end = min((self.n_computed // chunk + 1) * chunk, len(self.prompt))
        draws = self.sampling if end == len(self.prompt) else None
        return Slice(
            self.slot, self.n_computed, self.prompt[self.n_computed : end], draws, self.generated, self.constraint
        )

    def decode_slice(self) -> Slice:
        assert self.slot is not None
        return Slice(self.slot, self.n_computed, (self.generated[-1],), self.sampling, self.generated, self.constraint)
