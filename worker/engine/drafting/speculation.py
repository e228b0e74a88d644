"""The number of draft tokens in a step: as many as pay, and never so many that a job is delayed.

This module owns the costs of wider steps and the bound of what wrong drafts may cost a job. It knows neither where
drafts are from (drafts.py) nor the meaning of a token. It is pure and runs on the step thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp, log
from typing import Protocol

from worker.engine.drafting.acceptance import Acceptance, Account, Draft
from worker.engine.drafting.step_costs import StepCosts
from worker.engine.sequence import Sequence
from worker.engine.step import Slice
from worker.wire.jobs import SlotId

MIN_GAIN = 1.03
"""A step takes drafts if it is expected to be at least this many times as fast; measured costs are no more precise than
that."""
MAX_LOST = 0.02
"""Wrong drafts may cost this share of a job's time."""

N_INVESTED = 64
"""The number of tokens whose time may be spent on reading along with a prompt, beyond the time that drafts have won.
Reading along pays later or never."""

MAX_HELD_UP = 0.05
"""The share by which drafts of other jobs may slow a sequence down on a GPU."""


Running = Mapping[SlotId, Sequence]


class Maker(Protocol):
    """The costs of drafts that take time to make. DraftModel and the tests' modelled one implement it."""

    @property
    def n_most(self) -> int:
        """The largest number of draft tokens for one sequence."""
        ...

    def draft_s(self, n_rows: int) -> float:
        """Return the seconds of one draft token for each of n_rows ≥ 1 sequences."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft for a decoding sequence, which may be empty."""

    account: Account
    """The account of the sequence."""
    acceptance: Acceptance
    """The acceptance of such drafts."""
    draft: Draft


class Speculation:
    """Plans the drafts of decode steps.

    `row_costs` are (tokens in a decode step, seconds it took), ascending from 1 token, and linear between; no step is
    made wider than the widest of them, and without any there are no drafts. `n_most` bounds the draft tokens of a step.
    `switch_s` are the seconds that a step with drafts costs beyond that, because the steps before and after it have
    another width: a GPU's graph is built and captured again for each change.

    A plan maximises the geometric mean of the sequences' expected speeds. For one sequence that is its tokens per
    second; in a batch one sequence's draft must win more than it costs all the others, and then the batch's tokens
    per second rise as well.

    Law: whatever is accepted, any stretch of a job costs at most 1 + MAX_LOST times its cost without drafts, plus one
    step of a single sequence with n_most draft tokens and one change of width. A job that has used this up has drafts
    again when some of it is forgiven: soon a short one, and the time that it wins lets it go on. If drafts take time to
    make, that time counts too; all jobs together then lose at most the time of N_INVESTED tokens more.
    """

    def __init__(self, row_costs: Seq[tuple[int, float]], n_most: int, switch_s: float = 0.0) -> None:
        self.costs = StepCosts(row_costs)
        self._n_most = n_most
        self._switch_s = switch_s
        self._had_drafts = False
        self._most_spare_s = N_INVESTED * self.costs.of(1) if row_costs else 0.0
        self.spare_s = self._most_spare_s
        """The seconds that may be spent on work that pays later or never: those that jobs have won, and the share of
        their time that wrong drafts did not cost."""

    def took(self, n_tokens: int, seconds: float, *, has_drafts: bool) -> None:
        """Learn from a decode step's time, without the time of a change of width."""
        if has_drafts != self._had_drafts:
            seconds -= self._switch_s / 2
        self._had_drafts = has_drafts
        self.costs.took(n_tokens, seconds)

    def cost_s(self, n_rows: int) -> float:
        """Return the seconds of a step of n_rows ≥ 1 sequences without drafts; 0 if they are not known."""
        return self.costs.of(n_rows) if n_rows <= self.costs.widest else 0.0

    def most_drafts(self, n_rows: int) -> int:
        """Return how many draft tokens would pay with n_rows ≥ 1 sequences if all were right; if 0, none need be
        sought."""
        gains = (log(1 + 1 / n) for n in range(1, self._n_most + 1) for _ in range(n_rows))
        return self._n_paying(n_rows, gains)

    def best(self, proposals: Seq[Proposal], n_rows: int) -> Proposal:
        """Return the one of a sequence's proposals that makes the step of n_rows fastest if the other sequences have
        none."""
        drafted = [proposal for proposal in proposals if proposal.draft.tokens]
        if len(drafted) < 2:
            return (drafted or proposals)[0]
        return max(drafted, key=lambda proposal: self._most_gained(n_rows, gains_of(proposal))[1])

    def plan(self, proposals: Seq[Proposal], made_s: float = 0.0) -> list[int]:
        """Return how many of its draft tokens each sequence of the step takes, in order, and put their cost on its
        account. `made_s` are the seconds that it took to make the drafts; they are on the accounts already.

        The caller gives every sequence of the step, and updates each `Account` and `Acceptance` with the draws.
        """
        n_rows = len(proposals)
        counts = [0] * n_rows
        if not 0 < n_rows <= self.costs.widest:
            return counts
        self._forgive(proposals)
        best = self._best(proposals)
        n_taken = self._n_paying(n_rows, (gain for _, gain in best), made_s)
        if self._holds_up(best[:n_taken], n_rows):
            return counts
        for n_before, (i, _) in enumerate(best[:n_taken], n_rows):
            counts[i] += 1
            proposals[i].account.lost_s += self.costs.of_one_more(n_before)
        takers = [proposal.account for proposal, count in zip(proposals, counts, strict=True) if count]
        for account in takers:
            account.lost_s += self._switch_s / len(takers)
        return counts

    def in_order(self, slices: Seq[Slice]) -> tuple[Slice, ...]:
        """Return the slices of a step with drafts as they are to be computed."""
        return tuple(slices)

    def _forgive(self, proposals: Seq[Proposal]) -> None:
        """Forgive each sequence of a step a share of what it has lost."""
        token_s = self.costs.of(len(proposals)) / len(proposals)
        for proposal in proposals:
            account = proposal.account
            account.token_s = token_s
            lost_s = account.lost_s - MAX_LOST * token_s
            account.lost_s = max(0.0, lost_s)
            self.spare_s = min(self._most_spare_s, self.spare_s + max(0.0, -lost_s))

    def _holds_up(self, taken: Seq[tuple[int, float]], n_rows: int) -> bool:
        """Return True if on a GPU some sequence would be slower because of other jobs' drafts. A sequence without
        drafts pays for all of them there; and the time that the others win is lost again when they have ended, because
        fewer rows take nearly as long.
        """
        if not self._switch_s or n_rows == 1 or not taken:
            return False
        gained = [0.0] * n_rows
        for i, gain in taken:
            gained[i] += gain
        return self._is_held_up(min(gained), self._with_drafts_s(n_rows + len(taken)) / self.costs.of(n_rows), n_rows)

    def _is_held_up(self, gain: float, slower: float, n_rows: int) -> bool:
        return self._switch_s > 0 and n_rows > 1 and exp(gain) * (1 + MAX_HELD_UP) < slower

    # ── drafts that take time to make ────────────────────────────────────────────────────────────

    def can_pay(self, account: Account) -> bool:
        """Return True if drafts may be made for a job; half of the time that it may lose is for the steps that take
        them."""
        return account.lost_s <= self._most_lost_s / 2

    def gained(self, proposals: Seq[Proposal]) -> float:
        """Return the gain of a step by these proposals, one for each sequence: the sum of the logarithms of their
        speeds."""
        if not any(proposal.draft.tokens for proposal in proposals):
            return 0.0
        return self._most_gained(len(proposals), (gain for _, gain in self._best(proposals)))[1]

    def asked(self, hopes: Seq[Acceptance], n_rows: int, maker: Maker, gained: float) -> tuple[int, int]:
        """Return the number of a step's n_rows sequences to make drafts for, and the number of tokens of each draft;
        (0, 0) if that is not expected to gain more than `gained`.

        `hopes` say how often tokens of each sequence's drafts are right, by their place; the best sequence comes first.
        """
        best = max(gained, n_rows * log(MIN_GAIN)), 0, 0
        for n_asked in range(1, len(hopes) + 1):
            net, depth = self._deepest(hopes[:n_asked], n_rows, maker)
            best = max(best, (net, n_asked, depth))
        return best[1:]

    def saved_s(self, hope: Acceptance, n_rows: int, maker: Maker) -> float:
        """Return the seconds of a step of n_rows sequences that drafts for one of them are expected to save; 0 if they
        are not worth making."""
        net, _ = self._deepest([hope], n_rows, maker)
        return self.costs.of(n_rows) * (1 - exp(-net / n_rows)) if net > n_rows * log(MIN_GAIN) else 0.0

    def _deepest(self, hopes: Seq[Acceptance], n_rows: int, maker: Maker) -> tuple[float, int]:
        """Return the largest gain of drafts for these sequences, counting the time to make them, and the number of
        tokens of each draft."""
        n_asked, cost_s, each_s = len(hopes), self.costs.of(n_rows), maker.draft_s(len(hopes))
        chances, expected = [1.0] * n_asked, [1.0] * n_asked
        gained, best, n_best = 0.0, 0.0, 0
        for depth in range(1, min(maker.n_most, min(self._n_most, self.costs.widest - n_rows) // n_asked) + 1):
            for i, hope in enumerate(hopes):
                chances[i] *= hope.rate(depth - 1)
                gained += log(1 + chances[i] / expected[i])
                expected[i] += chances[i]
            taken_s = self._with_drafts_s(n_rows + depth * n_asked) + depth * each_s
            net = gained - n_rows * log(taken_s / cost_s)
            if net > best:
                best, n_best = net, depth
        return best, n_best

    # ── the best of all draft tokens ─────────────────────────────────────────────────────────────

    def _best(self, proposals: Seq[Proposal]) -> list[tuple[int, float]]:
        """Return the n_most best draft tokens that their jobs can pay, as (index of the proposal, gain), best first."""
        prospects = [gains_of(proposal) for proposal in proposals]
        room_s = [self._most_lost_s - self._switch_s - proposal.account.lost_s for proposal in proposals]
        heap = [(-gain, i) for i, gains in enumerate(prospects) for gain in islice(gains, 1)]
        heapify(heap)
        best: list[tuple[int, float]] = []
        n_most = min(self._n_most, self.costs.widest - len(proposals))
        while heap and len(best) < n_most:
            negative_gain, i = heappop(heap)
            room_s[i] -= self.costs.of_one_more(len(proposals) + len(best))
            if room_s[i] < 0:
                continue
            best.append((i, -negative_gain))
            for gain in islice(prospects[i], 1):
                heappush(heap, (-gain, i))
        return best

    def _n_paying(self, n_rows: int, gains: Iterable[float], made_s: float = 0.0) -> int:
        """Return how many draft tokens make the step fastest, if it is then fast enough; otherwise 0."""
        n_best, best = self._most_gained(n_rows, gains, made_s)
        return n_best if best > n_rows * log(MIN_GAIN) else 0

    def _most_gained(self, n_rows: int, gains: Iterable[float], made_s: float = 0.0) -> tuple[int, float]:
        """Return how many draft tokens make the step fastest, and how much they add to the sum of the logarithms of all
        n_rows sequences' speeds. `gains` are the additions of each draft token to the logarithm of its sequence's
        expected tokens, best first. `made_s` are the seconds that this step has taken already.
        """
        n_most = min(self._n_most, self.costs.widest - n_rows)
        if n_most <= 0:
            return 0, 0.0
        n_best, best = 0, 0.0
        cost_s, gained = self.costs.of(n_rows) + made_s, 0.0
        for n_drafts, gain in enumerate(islice(gains, n_most), 1):
            gained += gain
            net = gained - n_rows * log((self._with_drafts_s(n_rows + n_drafts) + made_s) / cost_s)
            if net > best:
                n_best, best = n_drafts, net
        return n_best, best

    def _with_drafts_s(self, n_tokens: int) -> float:
        return self.costs.of(n_tokens) + self._switch_s

    @property
    def _most_lost_s(self) -> float:
        return self._with_drafts_s(min(1 + self._n_most, self.costs.widest))


def n_allowed(sequence: Sequence, n_most: int) -> int:
    """Return how many draft tokens it may have: none if the next token is known, and none after the last
    allowed token."""
    if sequence.n_to_compute > 1 or sequence.forced:
        return 0
    return max(0, min(n_most, sequence.max_tokens - len(sequence.generated) - 1))


def permitted(draft: Draft, sequence: Sequence) -> Draft:
    """Return the draft as far as the sequence's constraint allows it."""
    if sequence.constraint is None or not draft.tokens:
        return draft
    return Draft(draft.tokens[: sequence.constraint.n_allowed(draft.tokens)], draft.n_matched)


def gains_of(proposal: Proposal) -> Iterator[float]:
    """Yield how much each draft token adds to the logarithm of the sequence's expected tokens; it never rises."""
    chance = expected = 1.0
    first = proposal.draft.n_matched
    for n_matched in range(first, first + len(proposal.draft.tokens)):
        # A draft token is right only after the ones before it were.
        chance *= proposal.acceptance.rate(n_matched)
        yield log(1 + chance / expected)
        expected += chance
