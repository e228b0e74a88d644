"""A job in flight inside the engine: its tokens, its place, and the only legal moves between states.

WAITING ──slot──▶ FOLLOW ──prefix settled──▶ (REPORT ──▶) PREFILL ──all computed──▶ DECODE
 │   ▲               │                         │             │                        │
 │   └── paused ─────┴─────────────────────────┴─────────────┴────────────────────────┤
 └─────────────────────────────── end ────────────────────────────────────────────────┴──▶ DONE
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Self

from msgspec import structs

from worker.engine.channels import ChannelText
from worker.engine.drafting.lookups import Lookup
from worker.engine.drafting.pricing import Account, Draft
from worker.engine.step import Constraint, Score, Scoring, Slice, Token
from worker.wire.jobs import Delta, JobKey, SamplingParams, SlotId, StopReason, Submit, TokenId

NO_SCORE = Score(b"")
"""A placeholder for the score of a prompt's first token, which follows nothing."""


class State(Enum):
    WAITING = auto()
    """It waits for a slot and for room in the KV cache."""
    FOLLOW = auto()
    """It has a slot; another sequence may be computing its prefix."""
    REPORT = auto()
    """The log-probabilities that were found with its cached prefix are sent to the front, a few per step."""
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.FOLLOW, State.DONE}),
    State.FOLLOW: frozenset({State.REPORT, State.PREFILL, State.WAITING, State.DONE}),
    State.REPORT: frozenset({State.PREFILL, State.WAITING, State.DONE}),
    State.PREFILL: frozenset({State.DECODE, State.WAITING, State.DONE}),
    State.DECODE: frozenset({State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Queued:
    """An accepted job on its way from the intake thread to the step thread."""

    submit: Submit
    prompt: list[TokenId]
    """Its tokens: 1 ≤ len(prompt) < context_length, or ≤ if max_tokens is 0, because nothing is generated then."""
    constraint: Constraint | None = None
    """The engine owns it from here on."""
    prediction: Seq[TokenId] = ()
    """The tokens of Submit.prediction."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One job in the engine. `max_tokens` is already cut to the room that the context leaves; `is_cut` says that it
    was. If it is 0, the sequence ends when its prompt is computed.
    """

    job: JobKey
    """Keys count up with the arrival of jobs: the lower one is the older."""
    prompt: list[TokenId]
    max_tokens: int
    sampling: SamplingParams
    text: ChannelText
    constraint: Constraint | None = None
    is_cut: bool = False
    n_top: int | None = None
    """The number of most probable tokens to report with each token of the prompt; None reports no log-probabilities of
    the prompt."""
    watches_names: bool = False
    """True if the log-probabilities of tools' names in JSON are reported."""
    state: State = State.WAITING
    slot: SlotId | None = None
    tokens: list[TokenId] = field(init=False)
    """The prompt and the generated tokens."""
    generated: list[TokenId] = field(default_factory=list)
    n_computed: int = 0
    """The number of cells that this sequence holds: positions [0, n_computed) of `tokens`."""
    scores: list[Score] = field(default_factory=list)
    """The known scores of its first tokens, by position; the very first has none. They are kept even if only other jobs
    may want them. If scores are wanted, the token after the last computed one has one, too. After a pause or a failed
    step more scores than cells may be known; these cells are computed again unless all scores are known."""
    n_reported: int = 1
    """The position of the next token of the prompt whose log-probability is to be reported."""
    is_begun: bool = False
    """True once its start was reported. A paused sequence that gets a slot again is not reported twice."""
    n_served: int = 0
    """The number of rows that were computed for it, drafts included."""
    n_turn: int = 0
    """The number of these since it got its slot."""
    n_lost: int = 0
    """The estimated number of its tokens that were computed in steps that were stopped."""
    n_pauses: int = 0
    n_passed: int = 0
    """The number of younger sequences that got a slot while it waited for one."""
    leader: Self | None = None
    """The sequence that is computing its prefix, while it is in FOLLOW."""
    n_awaited: int = 0
    """The number of the leader's cells that this sequence waits for."""
    stops: tuple[int, ...] = ()
    """The positions, ascending, where a slice ends so that a checkpoint can be taken."""
    forced: deque[Token] = field(default_factory=deque)
    """Tokens that must come next; each waits here until a step gives its log-probability."""
    unreported: list[Delta] = field(default_factory=list)
    """The deltas of forced tokens at the start of the text. They are reported with the first drawn token: until then
    nothing that depends on the prompt was shown, and the job can start again."""
    lookups: list[Lookup] = field(default_factory=list)
    """The texts in which its drafts are looked up."""
    account: Account = field(default_factory=Account)
    n_drafted: int = 0
    """The number of draft tokens that were computed for it."""
    n_accepted: int = 0
    """The number of these that were drawn."""

    def __post_init__(self) -> None:
        self.tokens = [*self.prompt, *self.generated]
        if self.n_top is not None:
            self.scores = [NO_SCORE]

    @property
    def n_most(self) -> int:
        """The number of cells that it may need in the end."""
        return len(self.prompt) + self.max_tokens

    @property
    def n_cells_left(self) -> int:
        return self.n_most - self.n_computed

    @property
    def n_to_compute(self) -> int:
        """The number of its tokens that are known and not computed."""
        return len(self.tokens) - self.n_computed

    @property
    def is_scoring(self) -> bool:
        """True if log-probabilities of its prompt are wanted and not all known yet."""
        return self.n_top is not None and len(self.scores) < len(self.prompt)

    @property
    def is_following(self) -> bool:
        """True if it waits for the tokens that its leader is computing."""
        leader = self.leader
        return leader is not None and leader.state is State.PREFILL and leader.n_computed < self.n_awaited

    @property
    def n_reportable(self) -> int:
        """The position after the last token of the prompt whose log-probability can be reported."""
        return min(len(self.scores), len(self.prompt))

    @property
    def has_unreported(self) -> bool:
        return self.n_top is not None and self.n_reported < self.n_reportable

    @property
    def is_out_of_tokens(self) -> bool:
        return len(self.generated) >= self.max_tokens

    def move(self, state: State) -> None:
        """Change the state. Raises: AssertionError for a move that LEGAL_MOVES lacks; nothing changes then."""
        assert state in LEGAL_MOVES[self.state], f"{self.state.name} -> {state.name} is not a legal move"
        self.state = state

    def advance(self, n_tokens: int, n_drafts: int = 0) -> None:
        """Count tokens that a step has computed, and the drafts after them; the last token of a prefill ends it."""
        self.n_computed += n_tokens
        self.n_served += n_tokens + n_drafts
        self.n_turn += n_tokens + n_drafts
        if self.state is State.PREFILL and self.n_to_compute == 0:
            self.move(State.DECODE)

    def begin_at(self, n_tokens: int, scores: Seq[Score]) -> None:
        """Start with the first n_tokens cached, and with these scores of its first tokens."""
        self.n_computed = n_tokens
        n_scores = n_tokens + self.is_scoring
        if self.is_scoring or len(self.scores) < min(n_scores, len(scores)):
            self.scores = list(scores[:n_scores])

    def append(self, token: TokenId) -> None:
        self.generated.append(token)
        self.tokens.append(token)

    def followed(self, drawn: Seq[Token]) -> Seq[Token]:
        """Return the drawn tokens, if any, and after them the tokens that the constraint forces.

        If log-probabilities are wanted, the forced tokens wait in `forced` instead, and come back through later calls
        one by one, as if they were drawn; the prompt's log-probabilities are reported before them.
        """
        if self.constraint is None:
            return drawn
        if self.forced and drawn:
            self.forced.popleft()
            return drawn
        for each in drawn:
            self.constraint.accept(each.id)
        run = self.constraint.take_forced(self.max_tokens - len(self.generated))
        if self.sampling.logprobs is None and self.n_top is None:
            return [*drawn, *run]
        self.forced.extend(run)
        return drawn

    @property
    def is_over(self) -> bool:
        """True if the constraint allows no further token."""
        return self.constraint is not None and not self.forced and self.constraint.is_over

    def stop_reason(self, *, is_end: bool, is_stop_token: bool, is_over: bool) -> StopReason | None:
        """Return why the sequence ends after the token just appended, or None. If the last allowed token completes a
        stop string, the reason is the stop."""
        if not is_end and (is_stop_token or self.text.matched is not None):
            return "STOP_SEQUENCE"
        if is_end or is_over:
            return "EOS"
        return "MAX_TOKENS" if self.is_out_of_tokens else None

    def n_draftable(self, n_most: int) -> int:
        """Return how many draft tokens it may have: none if the next token is known, and none after the last allowed
        token."""
        if self.n_to_compute > 1 or self.forced:
            return 0
        return max(0, min(n_most, self.max_tokens - len(self.generated) - 1))

    def permitted(self, draft: Draft) -> Draft:
        """Return the draft as far as the constraint allows it."""
        if self.constraint is None or not draft.tokens:
            return draft
        return replace(draft, tokens=draft.tokens[: self.constraint.n_allowed(draft.tokens)])

    def prefill_slice(self, n_most: int, grain: int) -> Slice | None:
        """Return a slice of up to `n_most` of the tokens to compute. If it has all of them, the last one draws unless
        nothing is generated. If not, it ends at a stop or at an absolute multiple of `grain`, or is None if `n_most`
        tokens do not reach one.
        """
        reach = self.n_computed + n_most
        is_last = reach >= len(self.tokens)
        edge = reach // grain * grain
        stop = next((stop for stop in self.stops if stop > self.n_computed), None)
        if stop is not None and stop <= reach and stop < len(self.tokens):
            is_last, edge = False, stop
        tokens = self.tokens[self.n_computed : None if is_last else edge]
        if not tokens:
            return None
        slice_ = self._slice(tokens, draws=is_last and self.max_tokens > 0)
        if not self.is_scoring:
            return slice_
        begin = self.n_computed + 1
        return structs.replace(slice_, scoring=Scoring(self.prompt[begin : begin + len(tokens)], self.scores))

    def decode_slice(self, draft: Seq[TokenId] = (), n_most: int = 1) -> Slice:
        """Return a slice of up to `n_most` of the tokens to compute, and of the draft tokens after them. There are
        several to compute if a constraint has forced some; the last of all tokens to compute draws.
        """
        tokens = self.tokens[self.n_computed : self.n_computed + n_most]
        return self._slice([*tokens, *draft], draws=len(tokens) == self.n_to_compute, n_drafts=len(draft))

    def _slice(self, tokens: Seq[TokenId], *, draws: bool, n_drafts: int = 0) -> Slice:
        assert self.slot is not None
        if not draws:
            return Slice(self.slot, self.n_computed, tokens)
        forced, watches = self.forced[0] if self.forced else None, self.watches_names
        its_own = self.sampling, self.generated, self.constraint
        return Slice(self.slot, self.n_computed, tokens, *its_own, n_drafts, forced, watches_names=watches)
