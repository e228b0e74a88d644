"""Drafts from a small model that reads along: the tokens that it finds most likely after a job's own.

This module owns the draft model's computed cells of each slot, and how much asking it has been worth. Its cells follow
a job lazily: before it drafts it computes the tokens that it lacks, and after a rejection or a pause it drops cells
that are not the job's text. Any of them may be dropped at any time; no answer depends on them. It knows neither how
many draft tokens pay (speculation.py) nor the device (`Runner`). It is pure and runs on the step thread.

A draft model with recurrent state computes drafts in a spare slot, which begins with the cells and the state of the
job's own; a state cannot be cut, so a job's own slot has only tokens of the job.
"""

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import exp
from typing import Self, TypeVar

from worker.engine.backend import LoadedDraft
from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Draft
from worker.engine.drafting.step_costs import StepCosts
from worker.engine.sequence import Sequence
from worker.engine.step import Sampled, Slice, Step, StepFailed
from worker.wire.jobs import Sampling, SlotId, TokenId

MAX_LACKING = 8
"""The largest number of missing tokens that are computed with the first draft token. After a step it lacks one or two;
more of them, as after a prompt, are computed in steps of their own."""
CATCH_UP_SHARE = 0.5
"""Catching up takes at most this share of the ITL target between two steps."""
MAX_AT_ONCE = 512
"""The largest number of missing tokens that are computed between two steps, however little time they take."""
LIKELY_TOKENS = 64
"""A job is expected to generate as many tokens again as it has, and at least this many, if it may."""

HOPE = 8.0
"""The assumed number of right draft tokens for each wrong one before any was judged: a pair of models that is
not worth a try is not started."""
HALF_LIFE_STEPS = 64
"""The number of steps without drafts for a job after which observations of its drafts count half, so that it is tried
again some hundred tokens later."""
HALF_LIFE_JOBS = 4
"""The number of new jobs after which observations of all jobs' drafts count half."""

_GREEDY = Sampling(seed=0, temperature=0.0, logprobs=0)
_BEGINNING = Acceptance.believing(HOPE)
"""This one never learns from a draft."""
_NO_TOKEN = TokenId(-1)
"""This token is never drawn."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Worth:
    """The acceptance of drafts, by the place of a token in its draft."""

    offered: Acceptance = field(default_factory=_BEGINNING.copy)
    """The acceptance of the tokens that were drafted."""
    asked: Acceptance = field(default_factory=_BEGINNING.copy)
    """The acceptance of the tokens that were asked for: one that the draft model was not sure of is wrong here."""

    def fade(self, half_life: int) -> None:
        """Let observations count a little less, compared with the assumption at the start."""
        for acceptance in (self.offered, self.asked):
            acceptance.fade(half_life, _BEGINNING)

    def copy(self) -> Self:
        return type(self)(self.offered.copy(), self.asked.copy())


@dataclass(slots=True, eq=False)
class Followed:
    """A sequence that the draft model reads along with, in the slot of the same number."""

    sequence: Sequence
    slot: SlotId
    spare: SlotId
    """The slot for its drafts, if the draft model has recurrent state."""
    worth: Worth
    held: list[TokenId]
    """The tokens whose cells it has, those of drafts included."""
    n_agreed: int = 0
    """The number of these that are known to be the sequence's."""
    first: int = 0
    """The number of the sequence's first tokens that it does not see; positions count from there."""
    asked: Draft = NO_DRAFT
    """The draft for the current step; _NO_TOKEN follows it if more tokens were asked for."""

    @property
    def n_lacking(self) -> int:
        """The number of the sequence's tokens that it has not computed; at least the last one, which gives the first
        draft."""
        return len(self.sequence.tokens) - self.first - self.n_agreed

    @property
    def is_ready(self) -> bool:
        return self.n_lacking <= MAX_LACKING

    def agree(self) -> bool:
        """Compare the held tokens with the sequence's, from where they last agreed. Return True if any of them is
        wrong."""
        tokens, held, first = self.sequence.tokens, self.held, self.first
        n_most = min(len(held), len(tokens) - first - 1)
        while self.n_agreed < n_most and held[self.n_agreed] == tokens[first + self.n_agreed]:
            self.n_agreed += 1
        return len(held) > self.n_agreed


@dataclass(slots=True, eq=False)
class _Growing:
    """A draft that is being made."""

    followed: Followed
    n_most: int
    tokens: list[TokenId] = field(default_factory=list)

    n_spare: int = 0
    """The number of tokens that its spare slot holds; 0 if it has none."""

    def next_slice(self) -> Slice:
        """Return the tokens to compute before the next token of the draft can be drawn."""
        followed = self.followed
        return Slice(
            followed.slot if not self.n_spare else followed.spare,
            self.n_spare or len(followed.held),
            self.tokens[-1:] or followed.sequence.tokens[followed.first + len(followed.held) :],
            _GREEDY,
        )

    def computed(self, slice_: Slice) -> None:
        """Count the tokens of a slice that was computed."""
        if self.n_spare:
            self.n_spare += len(slice_.tokens)
        else:
            self.followed.held += slice_.tokens

    def take(self, drawn: Sampled, min_probability: float) -> bool:
        """Append a token if it is likely enough. Return True if another one may follow."""
        if drawn.error is not None or drawn.logprob is None or exp(drawn.logprob.token.logprob) < min_probability:
            return False
        self.tokens.append(drawn.token)
        return not drawn.is_end and len(self.tokens) < self.n_most


class DraftModel:
    """The maker of drafts that take time (`Maker` in speculation.py). It is no DraftSource: only sequences for which it
    is expected to pay are drafted for and judged.

    `draft` has a slot for each of the n_slots slots of jobs, and as many spare ones behind them if it has recurrent
    state. `n_most` is the largest number of draft tokens for a job in a step. If the draft model fails, `on_lost` gets
    the reason, once, and the jobs go on without it.
    """

    def __init__(
        self,
        draft: LoadedDraft,
        *,
        n_slots: int,
        n_most: int,
        itl_target_s: float,
        clock: Callable[[], float],
        on_lost: Callable[[str], None],
    ) -> None:
        assert draft.row_costs
        self._draft, self._runner = draft, draft.runner
        self._has_state = draft.runner.kv.has_state
        self._n_slots = n_slots
        self._costs = StepCosts(draft.row_costs)
        self.n_most = n_most
        self._max_s = CATCH_UP_SHARE * itl_target_s
        self._clock = clock
        self._on_lost = on_lost
        self._followed: dict[SlotId, Followed] = {}
        self._worth = Worth()
        """The worth of all jobs' drafts, with which a job begins."""
        self.is_lost = False

    # ── what it costs ────────────────────────────────────────────────────────────────────────────

    def draft_s(self, n_rows: int) -> float:
        """Return the seconds of one draft token for each of n_rows ≥ 1 sequences."""
        return self._costs.of(min(n_rows, self._costs.widest))

    def catch_up_s(self, n_tokens: int) -> float:
        """Return the seconds of n_tokens that it only reads."""
        return n_tokens * self._costs.of(self._costs.widest) / self._costs.widest

    # ── following ────────────────────────────────────────────────────────────────────────────────

    def follow(self, sequences: Seq[Sequence]) -> list[Followed]:
        """Return the draft model's state of the sequences, each of which has a slot. Cells of other texts are
        dropped."""
        return self._unless_it_fails(lambda: [self._follow(sequence) for sequence in sequences], [])

    def _follow(self, sequence: Sequence) -> Followed:
        assert sequence.slot is not None
        slot = sequence.slot
        followed = self._followed.get(slot)
        if followed is None or followed.sequence is not sequence:
            held = [] if followed is None else followed.held
            spare = SlotId(slot + self._n_slots)
            followed = self._followed[slot] = Followed(sequence, slot, spare, self._worth.copy(), held)
            self._worth.fade(HALF_LIFE_JOBS)
        followed.asked = NO_DRAFT
        if followed.agree():
            self._forget(followed, followed.n_agreed)
        return followed

    def _forget(self, followed: Followed, n_keep: int) -> None:
        n_keep = 0 if self._has_state else n_keep
        self._runner.kv.trim(followed.slot, n_keep)
        del followed.held[n_keep:]
        followed.n_agreed = min(followed.n_agreed, n_keep)

    def catch_up(self, followed: Followed) -> float:
        """Compute a part of the tokens that the draft model lacks of a sequence. Return the seconds that this took; 0
        if there is no room.

        The part is as long as the ITL target allows, because other jobs wait for their next tokens.
        """
        n_at_once = max(1, int(min(MAX_AT_ONCE, self._max_s / self.catch_up_s(1))))
        tokens = followed.sequence.tokens[followed.first + followed.n_agreed : -1][:n_at_once]
        began_s = self._clock()
        self._unless_it_fails(lambda: self._read(followed, tokens), None)
        return self._clock() - began_s

    def _read(self, followed: Followed, tokens: list[TokenId]) -> None:
        if self._has_room(len(tokens), {followed.slot}):
            self._runner.run(Step("prefill", (Slice(followed.slot, followed.n_agreed, tokens),)))
            followed.held += tokens
            followed.n_agreed += len(tokens)

    # ── drafting ─────────────────────────────────────────────────────────────────────────────────

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        """Return for each sequence, which it follows closely, a draft of at most the wanted number of tokens."""
        growing = [
            _Growing(self._followed[sequence.slot], n_most) for sequence, n_most in wanted if sequence.slot is not None
        ]
        self._unless_it_fails(lambda: self._grow([each for each in growing if each.n_most > 0]), None)
        return [self._made(each) for each in growing]

    def _made(self, growing: _Growing) -> Draft:
        tokens = tuple(growing.tokens)
        growing.followed.asked = Draft((*tokens, _NO_TOKEN) if len(tokens) < growing.n_most else tokens)
        return Draft(tokens)

    def _grow(self, growing: list[_Growing]) -> None:
        """Make all drafts longer by a token each, in one batch for each token, until none may go on."""
        n_tokens = sum(each.followed.n_lacking + each.n_most - 1 for each in growing)
        if not self._has_room(n_tokens, {each.followed.slot for each in growing}):
            return
        while growing:
            step = Step("decode", tuple(each.next_slice() for each in growing))
            began_s = self._clock()
            sampled = self._runner.run(step)
            self._costs.took(step.n_tokens, self._clock() - began_s)
            for each, slice_ in zip(growing, step.slices, strict=True):
                each.computed(slice_)
            all_grown = growing
            pairs = zip(growing, sampled, strict=True)
            growing = [each for each, drawn in pairs if each.take(drawn, self._draft.min_probability)]
            if self._has_state:
                self._change_slots(all_grown, growing)

    def _change_slots(self, grown: list[_Growing], growing: list[_Growing]) -> None:
        """Go on in the spare slots with those that still grow, and empty those of the others."""
        kv = self._runner.kv
        for each in grown:
            if each not in growing and each.n_spare:
                kv.trim(each.followed.spare, 0)
            if each in growing and not each.n_spare:
                each.n_spare = len(each.followed.held)
                kv.share(each.followed.slot, each.followed.spare, each.n_spare)

    def acceptance(self, sequence: Sequence) -> Acceptance:
        assert sequence.slot is not None
        return self._followed[sequence.slot].worth.offered

    def judge(self, slot: SlotId, drawn: Seq[TokenId]) -> None:
        """Learn from the draws of a slot if a draft was asked for. The judge of drafts updates `acceptance`."""
        followed = self._followed.get(slot)
        if followed is None or not followed.asked.tokens:
            return
        offered = Draft(tuple(token for token in followed.asked.tokens if token != _NO_TOKEN))
        followed.worth.asked.saw(followed.asked, drawn)
        self._worth.asked.saw(followed.asked, drawn)
        self._worth.offered.saw(offered, drawn)

    # ── room and failures ────────────────────────────────────────────────────────────────────────

    def _has_room(self, n_tokens: int, kept: Collection[SlotId]) -> bool:
        """Return True if n_tokens cells are free, after dropping cells of slots that are not in `kept` if need be:
        those of ended and paused sequences first."""
        others = [followed for slot, followed in self._followed.items() if slot not in kept and followed.held]
        others.sort(key=lambda followed: followed.sequence.slot == followed.slot)
        for followed in others:
            if self._runner.kv.n_free_cells >= n_tokens:
                break
            self._forget(followed, 0)
        return self._runner.kv.n_free_cells >= n_tokens

    def _unless_it_fails(self, work: Callable[[], T], otherwise: T) -> T:
        """Do some work with the draft model. Its failures end no job."""
        if self.is_lost:
            return otherwise
        try:
            return work()
        except (StepFailed, RuntimeError, ValueError) as error:
            self.is_lost = True
            self._on_lost(str(error) or type(error).__name__)
            return otherwise
