"""Drafts of the most likely next tokens, by a small model that reads along or the model's own next-token head (MTP).

Its cells of a slot follow a job lazily: before it drafts it computes the tokens that it lacks, and after a rejection
or a pause it drops cells that are not the job's text. Any of them may be dropped: no answer depends on them.

A draft model with recurrent state computes drafts in a spare slot, which begins with the cells and the state of the
job's own; a state cannot be cut, so a job's own slot has only tokens of the job. A head reads a token with the model's
hidden row of the one before it. So it sees no token before the first that has a row, and computes what it drafted
itself again once the model's rows are there.
"""

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import exp, log
from typing import Self

from worker.engine.backend import LoadedDraft
from worker.engine.config import EngineConfig
from worker.engine.drafting.pricing import MIN_GAIN, N_CLASSES, Acceptance, Draft, Proposal, Speculation, StepCosts
from worker.engine.sequence import Sequence
from worker.engine.step import Sampled, Slice, Step, StepFailed
from worker.wire.jobs import SamplingParams, SlotId, TokenId

MAX_LACKING = 8
"""The largest number of missing tokens that are computed with the first draft token. After a step it lacks one or two;
more of them, as after a prompt, are computed in steps of their own."""
CATCH_UP_SHARE = 0.5
"""Catching up takes at most this share of the ITL target between two steps."""
MAX_AT_ONCE = 512
"""The largest number of missing tokens that are computed between two steps, however little time they take."""
LIKELY_TOKENS = 64
"""A job is expected to generate as many tokens again as it has, and at least this many, if it may."""
PAYBACK = 2.0
"""Reading along must be expected to win this many times its cost: an answer may be shorter than expected, and drafts
may be wrong more often."""

HOPE = 8.0
"""The assumed number of right draft tokens for each wrong one before any was judged: a pair of models that is
not worth a try is not started."""
HALF_LIFE_STEPS = 64
"""The number of steps without drafts for a job after which observations of its drafts count half, so that it is tried
again some hundred tokens later."""
HALF_LIFE_JOBS = 4
"""The number of new jobs after which observations of all jobs' drafts count half."""

Running = Mapping[SlotId, Sequence]
Proposals = Mapping[SlotId, list[Proposal]]

_GREEDY = SamplingParams(seed=0, temperature=0.0, logprobs=0)
_NO_TOKEN = TokenId(-1)
"""This token is never drawn."""
_BEGINNING = Acceptance([HOPE] * N_CLASSES, [1.0] * N_CLASSES)
"""This one never learns from a draft."""


class Worth(Acceptance):
    """The acceptance of the tokens that were drafted, by their place in a draft. `of_all` learns with it."""

    def __init__(self, of_all: Self | None = None) -> None:
        super().__init__()
        self.asked = Acceptance()
        """The acceptance of the tokens that were asked for: one that the draft model was not sure of is wrong here."""
        self._of_all = of_all
        self.take_after(_BEGINNING if of_all is None else of_all, 1.0)
        self.asked.take_after(_BEGINNING if of_all is None else of_all.asked, 1.0)

    def saw(self, draft: Draft, drawn: Seq[TokenId]) -> None:
        super().saw(draft, drawn)
        is_short = len(draft.tokens) < draft.n_asked
        self.asked.saw(Draft((*draft.tokens, _NO_TOKEN)) if is_short else draft, drawn)
        if self._of_all is not None:
            self._of_all.saw(draft, drawn)

    def fade(self, half_life: int) -> None:
        """Let observations count a little less, compared with the assumption at the start."""
        for acceptance in (self, self.asked):
            acceptance.take_after(_BEGINNING, 1 - 0.5 ** (1 / half_life))


@dataclass(slots=True, eq=False)
class _Followed:
    """A sequence that the draft model reads along with, in the slot of the same number."""

    sequence: Sequence
    slot: SlotId
    worth: Worth
    held: list[TokenId]
    """The tokens whose cells it has, those of drafts included."""
    n_agreed: int = 0
    """The number of these that are known to be the sequence's."""
    first: int = 0
    """The number of the sequence's first tokens that it does not see; positions count from there."""
    n_asked: int = 0
    """The largest number of tokens of the draft that is being made, `drafted` so far."""
    drafted: list[TokenId] = field(default_factory=list)
    drafts_in: SlotId = field(init=False)
    """The slot in which it is made: the sequence's, or a spare one with these cells."""
    cells: list[TokenId] = field(init=False)

    @property
    def n_lacking(self) -> int:
        """The number of the sequence's tokens that it has not computed; at least the last one, which gives the first
        draft, unless it sees none."""
        return len(self.sequence.tokens) - self.first - self.n_agreed

    def agree(self) -> bool:
        """Compare the held tokens with the sequence's. Return True if any of them is wrong."""
        tokens, held, first = self.sequence.tokens, self.held, self.first
        n_most = min(len(held), len(tokens) - first - 1)
        while self.n_agreed < n_most and held[self.n_agreed] == tokens[first + self.n_agreed]:
            self.n_agreed += 1
        return len(held) > self.n_agreed

    def begin_draft(self, n_most: int) -> None:
        self.n_asked, self.drafted, self.drafts_in, self.cells = n_most, [], self.slot, self.held

    def next_slice(self) -> Slice:
        lacking = self.sequence.tokens[self.first + len(self.cells) :]
        return Slice(self.drafts_in, len(self.cells), self.drafted[-1:] or lacking, _GREEDY)

    def take(self, drawn: Sampled, min_probability: float) -> bool:
        """Add a token to the draft if it is likely enough. Return True if another one may follow."""
        if drawn.error is not None or drawn.logprob is None or exp(drawn.logprob.token.logprob) < min_probability:
            return False
        self.drafted.append(drawn.token)
        return not drawn.is_end and len(self.drafted) < self.n_asked


class DraftModel:
    """Its `propose` is a `DraftSource` (drafts.py) whose drafts take time: they are made only where they should pay.
    `draft` has a slot for each slot of jobs, and as many spare ones behind them if it has recurrent state. `n_most` is
    the largest number of draft tokens for a job in a step. If the draft model fails, `warn` gets the reason, once, and
    the jobs go on without it.
    """

    def __init__(
        self,
        draft: LoadedDraft,
        speculation: Speculation,
        config: EngineConfig,
        *,
        n_most: int,
        clock: Callable[[], float],
        warn: Callable[[str], None],
    ) -> None:
        self._draft, self._runner, self._speculation = draft, draft.runner, speculation
        self._has_state = draft.runner.kv.has_state
        self._n_slots, self._n_most = config.n_slots, n_most
        self._costs = StepCosts(draft.row_costs)
        self._max_s = CATCH_UP_SHARE * config.itl_target_s
        self._clock = clock
        self._warn = warn
        self._followed: dict[SlotId, _Followed] = {}
        self._worth = Worth()
        """The worth of all jobs' drafts, with which a job begins."""
        self._is_lost = False

    def propose(self, sequences: Running, n_most: int, found: Proposals) -> float:  # noqa: ARG002 - it asks for fewer
        if self._is_lost:
            return 0.0
        try:
            return self._propose(sequences, found)
        except (StepFailed, RuntimeError, ValueError) as error:
            self._is_lost = True
            name = "draft model" if self._draft.hidden is None else "next-token head"
            self._warn(f"the {name} has failed and is not asked any more: {str(error) or type(error).__name__}")
            return 0.0

    def _propose(self, sequences: Running, found: Proposals) -> float:
        speculation, n_rows = self._speculation, len(sequences)
        followed = [self._follow(each) for each in sequences.values() if each.n_draftable(1)]
        self._catch_up([each for each in followed if each.n_lacking > MAX_LACKING], n_rows)
        able = [each for each in followed if 0 < each.n_lacking <= MAX_LACKING]
        able = [each for each in able if speculation.can_pay(each.sequence.account)]
        able.sort(key=lambda each: -each.worth.asked.rate(0))
        gained = speculation.gained([speculation.best(each, n_rows) for each in found.values()])
        hopes = [each.worth.asked for each in able]
        n_made, depth, _ = self._worth_making(hopes, n_rows, gained)
        for each in able[n_made:]:
            each.worth.fade(HALF_LIFE_STEPS)
        return self._make(able[:n_made], depth, found) if n_made else 0.0

    def _worth_making(self, hopes: Seq[Acceptance], n_rows: int, gained: float = 0.0) -> tuple[int, int, float]:
        """Return the number of a step's n_rows sequences to make drafts for, the number of tokens of each draft, and
        the seconds that the step is expected to save; (0, 0, 0.0) if that is not expected to gain more than `gained`.

        `hopes` say how often tokens of each sequence's drafts are right, by their place; the best sequence comes first.
        """
        speculation, making = self._speculation, self._costs
        cost_s, best = speculation.costs.of(n_rows), (max(gained, n_rows * log(MIN_GAIN)), 0, 0)
        for n_made in range(1, len(hopes) + 1):
            n_each = min(self._n_most, speculation.n_room(n_rows) // n_made)
            each_s, sum_gained = making.of(min(n_made, making.widest)), 0.0
            of_all = zip(*(hope.gains(0, n_each) for hope in hopes[:n_made]), strict=True)
            for depth, gains in enumerate(of_all, 1):
                sum_gained += sum(gains)
                taken_s = speculation.with_drafts_s(n_rows + depth * n_made) + depth * each_s
                best = max(best, (sum_gained - n_rows * log(taken_s / cost_s), n_made, depth))
        net, n_made, depth = best
        return n_made, depth, cost_s * (1 - exp(-net / n_rows)) if n_made else 0.0

    def _make(self, followed: Seq[_Followed], depth: int, found: Proposals) -> float:
        for each in followed:
            each.begin_draft(each.sequence.n_draftable(depth))
        began_s = self._clock()
        self._grow(followed)
        made_s = self._clock() - began_s
        for each in followed:
            sequence = each.sequence
            sequence.account.pay(made_s / len(followed))
            draft = sequence.permitted(Draft(tuple(each.drafted), n_asked=each.n_asked))
            found[each.slot].append(Proposal(sequence.account, each.worth, draft))
            if self._draft.hidden is not None:
                # Cells of draft tokens were computed from the head's own rows.
                self._forget(each, min(len(each.held), len(sequence.tokens) - each.first))
        return made_s

    def _follow(self, sequence: Sequence) -> _Followed:
        """Return the draft model's state of a sequence, without cells of other texts."""
        assert sequence.slot is not None
        followed = self._followed.get(sequence.slot)
        is_new = followed is None or followed.sequence is not sequence
        if followed is None or is_new:
            held = [] if followed is None else followed.held
            followed = self._followed[sequence.slot] = _Followed(sequence, sequence.slot, Worth(self._worth), held)
            self._worth.fade(HALF_LIFE_JOBS)
        if followed.agree():
            self._forget(followed, followed.n_agreed)
        if self._draft.hidden is not None:
            n_tokens = len(sequence.tokens)
            rows = self._draft.hidden.kept(followed.slot, n_tokens - 1)
            has_rows = len(rows) > 0 and rows.stop == n_tokens - 1
            # A token needs the row of the one before it.
            if is_new or not has_rows or rows.start >= followed.first + len(followed.held):
                followed.first = rows.start + 1 if has_rows else n_tokens
                self._forget(followed, 0)
                self._draft.hidden.firsts[followed.slot] = followed.first
        return followed

    def _forget(self, followed: _Followed, n_keep: int) -> None:
        n_keep = 0 if self._has_state else n_keep
        self._runner.kv.trim(followed.slot, n_keep)
        del followed.held[n_keep:]
        followed.n_agreed = min(followed.n_agreed, n_keep)

    def _catch_up(self, lacking: Seq[_Followed], n_rows: int) -> None:
        """Read a part of the first sequence for which that is expected to pay. The part is as long as the ITL target
        allows, because other jobs wait for their next tokens.
        """
        speculation = self._speculation
        token_s = self._costs.of(self._costs.widest) / self._costs.widest
        for each in lacking:
            sequence = each.sequence
            n_likely = min(sequence.max_tokens - len(sequence.generated), max(LIKELY_TOKENS, len(sequence.generated)))
            _, _, saved_s = self._worth_making([each.worth.asked], n_rows)
            if each.n_lacking * token_s <= min(speculation.spare_s, n_likely * saved_s / PAYBACK):
                n_at_once = max(1, int(min(MAX_AT_ONCE, self._max_s / token_s)))
                tokens = sequence.tokens[each.first + each.n_agreed : -1][:n_at_once]
                if self._has_room(len(tokens), {each.slot}):
                    began_s = self._clock()
                    self._runner.run(Step("prefill", (Slice(each.slot, each.n_agreed, tokens),)))
                    speculation.spare_s -= self._clock() - began_s
                    each.held += tokens
                    each.n_agreed += len(tokens)
                return

    def _grow(self, growing: Seq[_Followed]) -> None:
        """Make all drafts longer by a token each, in one batch for each token, until none may go on."""
        n_tokens = sum(each.n_lacking + each.n_asked - 1 for each in growing)
        if not self._has_room(n_tokens, {each.slot for each in growing}):
            return
        while growing:
            step = Step("decode", tuple(each.next_slice() for each in growing))
            began_s = self._clock()
            sampled = self._runner.run(step)
            self._costs.took(step.n_tokens, self._clock() - began_s)
            for each, slice_ in zip(growing, step.slices, strict=True):
                each.cells += slice_.tokens
            all_grown = growing
            pairs = zip(growing, sampled, strict=True)
            growing = [each for each, drawn in pairs if each.take(drawn, self._draft.min_probability)]
            if self._has_state:
                self._change_slots(all_grown, growing)

    def _change_slots(self, grown: Seq[_Followed], growing: Seq[_Followed]) -> None:
        """Go on in the spare slots with those that still grow, and empty those of the others."""
        kv = self._runner.kv
        for each in grown:
            if each not in growing and each.drafts_in != each.slot:
                kv.trim(each.drafts_in, 0)
            if each in growing and each.drafts_in == each.slot:
                each.drafts_in, each.cells = SlotId(each.slot + self._n_slots), list(each.held)
                kv.share(each.slot, each.drafts_in, len(each.cells))

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
