"""The price of drafts: how often those of one source were right, how many of their tokens pay in a step, when it pays
to make some, and what wrong ones may cost a job.

A token is the same whether there was a draft or not, so every draw judges the draft tokens that any source proposed for
it, even those that the step did not take.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from math import exp, log
from statistics import median

from worker.engine.step import Slice
from worker.wire.jobs import TokenId

N_CLASSES = 5
"""The number of classes of matches: up to 1, 2-3, 4-7, 8-15 and more tokens. A long match is right far more often."""
_DECAY = 0.5 ** (1 / 16)
"""After 16 draws an observation counts half. Values from 8 to 64 make no difference on edits, quotes and lists."""

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
N_TIMED = 9
"""The number of steps whose times are kept; one step that was delayed does not move their median."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for a job, the next one first."""

    tokens: tuple[TokenId, ...] = ()
    n_matched: int = 0
    """The least number of the job's last tokens that also stand before the place that the draft was read from. It is
    less if one of them differs from that place (`TRUST_BEHIND_A_CHANGE` in lookups.py)."""
    n_asked: int = 0
    """The number of tokens that a draft model was asked for; it ends before one that it is not sure of."""


NO_DRAFT = Draft()


@dataclass(slots=True, eq=False)
class Account:
    """The seconds that drafting has cost one job, by the cost model. `Speculation.plan` keeps it."""

    lost_s: float = 0.0
    """Less those that are forgiven. The next plan forgets any gain beyond that."""
    token_s: float = 0.0
    """The seconds of a token in the last plan without drafts."""
    has_paid: bool = False
    """True if time was spent to make drafts for the planned step. Only the time that these win may be spent again."""

    def pay(self, seconds: float) -> None:
        """Spend time on making drafts for the next step."""
        self.lost_s += seconds
        self.has_paid = True

    def won(self, n_tokens: int) -> None:
        """Count n_tokens draft tokens of the planned step as right."""
        self.lost_s -= n_tokens * self.token_s
        if not self.has_paid:
            self.lost_s = max(0.0, self.lost_s)
        self.has_paid = False


@dataclass(slots=True, eq=False)
class Acceptance:
    """The share of the drafts of one source that were right."""

    _right: list[float] = field(default_factory=lambda: [2.0**i for i in range(N_CLASSES)])
    """The number of draft tokens that were right, by class of match. A match of m tokens begins as if m had been right
    and one wrong."""
    _wrong: list[float] = field(default_factory=lambda: [1.0] * N_CLASSES)

    def rate(self, n_matched: int) -> float:
        """Return the chance, in [0, 1], that the next draft token is right after a match of n_matched ≥ 0 tokens."""
        i = _class(n_matched)
        return self._right[i] / (self._right[i] + self._wrong[i])

    def saw(self, draft: Draft, drawn: Seq[TokenId]) -> None:
        """Learn from the drawn tokens of a step. Draft tokens after a wrong one teach nothing."""
        for n_matched, (expected, token) in enumerate(zip(draft.tokens, drawn, strict=False), draft.n_matched):
            i = _class(n_matched)
            self._right[i] = self._right[i] * _DECAY + (expected == token)
            self._wrong[i] = self._wrong[i] * _DECAY + (expected != token)
            if expected != token:
                break

    def take_after(self, other: "Acceptance", share: float) -> None:
        """Let observations count a `share` less, and those of another one instead of them."""
        self._right = [(1 - share) * a + share * b for a, b in zip(self._right, other._right, strict=True)]
        self._wrong = [(1 - share) * a + share * b for a, b in zip(self._wrong, other._wrong, strict=True)]

    def gains(self, n_matched: int, n_tokens: int) -> Iterator[float]:
        """Yield how much each of n_tokens draft tokens adds to the logarithm of a sequence's expected tokens; it never
        rises."""
        chance = expected = 1.0
        for n in range(n_matched, n_matched + n_tokens):
            # A draft token is right only after the ones before it were.
            chance *= self.rate(n)
            yield log(1 + chance / expected)
            expected += chance


def _class(n_matched: int) -> int:
    return min(max(1, n_matched).bit_length(), N_CLASSES) - 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft, which may be empty, for a decoding sequence with this account. Every draw teaches the acceptance."""

    account: Account
    acceptance: Acceptance
    draft: Draft

    def gains(self) -> Iterator[float]:
        return self.acceptance.gains(self.draft.n_matched, len(self.draft.tokens))


class StepCosts:
    """The costs of one model's decode steps by rows, corrected by each step that ran. `row_costs` are (tokens in a
    decode step, seconds it took at warm-up), ascending from 1 token, linear between."""

    def __init__(self, row_costs: Seq[tuple[int, float]]) -> None:
        assert not row_costs or row_costs[0][0] == 1
        self._seconds = interpolated(row_costs)
        self._surplus_s: deque[float] = deque(maxlen=N_TIMED)
        self._row_surplus_s = 0.0

    @property
    def widest(self) -> int:
        """The number of tokens in the widest step with a known cost; 0 if none is known."""
        return len(self._seconds)

    def took(self, n_rows: int, seconds: float) -> None:
        """Learn from a decode step's time. The time beyond its measured cost is attributed to its rows: attention over
        a long context costs every row the same, and was not measured at warm-up.
        """
        if n_rows <= self.widest:
            self._surplus_s.append((seconds - self._seconds[n_rows - 1]) / n_rows)
            self._row_surplus_s = max(0.0, median(self._surplus_s))

    def of(self, n_rows: int) -> float:
        """Return the seconds of a step of 1 ≤ n_rows ≤ widest tokens."""
        return self._seconds[n_rows - 1] + n_rows * self._row_surplus_s


def interpolated(row_costs: Seq[tuple[int, float]]) -> list[float]:
    """Return the seconds of steps of 1, 2, ... rows. More rows never cost less; a measurement that says so is noise."""
    rising = list(accumulate((seconds for _, seconds in row_costs), max))
    costs = rising[:1]
    for ((n, _), (m, _)), (n_s, m_s) in zip(pairwise(row_costs), pairwise(rising), strict=True):
        costs += (n_s + (m_s - n_s) * i / (m - n) for i in range(1, m - n + 1))
    return costs


class Speculation:
    """Plans the drafts of decode steps.

    No step is made wider than the widest of `row_costs` (`StepCosts`), and without any there are no drafts. `n_most`
    bounds the draft tokens of a step. `switch_s` are the seconds that a step with drafts costs beyond that, because the
    steps before and after it have another width: a GPU's graph is built and captured again for each change.

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
        return self._n_paying(n_rows, (log(1 + 1 / n) for n in range(1, self._n_most + 1) for _ in range(n_rows)))

    def best(self, proposals: Seq[Proposal], n_rows: int) -> Proposal:
        """Return the one of a sequence's proposals that makes the step of n_rows fastest if the other sequences have
        none."""
        drafted = [proposal for proposal in proposals if proposal.draft.tokens]
        if len(drafted) < 2:
            return (drafted or proposals)[0]
        return max(drafted, key=lambda proposal: self._most_gained(n_rows, proposal.gains())[1])

    def plan(self, proposals: Seq[Proposal], made_s: float = 0.0) -> list[int]:
        """Return how many of its draft tokens each sequence of the step takes, in order, and put their cost on its
        account. `made_s` are the seconds that it took to make the drafts; they are on the accounts already.
        """
        if not 0 < len(proposals) <= self.costs.widest:
            return [0] * len(proposals)
        # Each sequence is forgiven a share of what it has lost.
        token_s = self.costs.of(len(proposals)) / len(proposals)
        for account in (proposal.account for proposal in proposals):
            lost_s = account.lost_s - MAX_LOST * token_s
            account.token_s, account.lost_s = token_s, max(0.0, lost_s)
            self.spare_s = min(self._most_spare_s, self.spare_s + max(0.0, -lost_s))
        return self._planned(proposals, made_s)

    def _planned(self, proposals: Seq[Proposal], made_s: float) -> list[int]:
        n_rows, counts = len(proposals), [0] * len(proposals)
        best = self._best(proposals)
        n_taken = self._n_paying(n_rows, (gain for _, gain in best), made_s)
        taken, gained = best[:n_taken], [0.0] * n_rows
        for i, gain in taken:
            gained[i] += gain
        if taken and self._is_held_up(
            min(gained), self.with_drafts_s(n_rows + n_taken) / self.costs.of(n_rows), n_rows
        ):
            return counts
        for n_before, (i, _) in enumerate(taken, n_rows):
            counts[i] += 1
            proposals[i].account.lost_s += self._one_more_s(n_before)
        takers = [proposal.account for proposal, count in zip(proposals, counts, strict=True) if count]
        for account in takers:
            account.lost_s += self._switch_s / len(takers)
        return counts

    def in_order(self, slices: Seq[Slice]) -> tuple[Slice, ...]:
        """Return the slices of a step with drafts as they are to be computed."""
        return tuple(slices)

    def _is_held_up(self, gain: float, slower: float, n_rows: int) -> bool:
        """Return True if on a GPU the sequence of the least gain would be slower because of other jobs' drafts. One
        without drafts pays for all of them there; and the time that the others win is lost again when they have ended,
        because fewer rows take nearly as long.
        """
        return self._switch_s > 0 and n_rows > 1 and exp(gain) * (1 + MAX_HELD_UP) < slower

    def can_pay(self, account: Account) -> bool:
        """Return True if drafts may be made for a job. Half of what it may lose is for the steps that take them."""
        return account.lost_s <= self._most_lost_s / 2

    def gained(self, proposals: Seq[Proposal]) -> float:
        """Return the gain of a step by these proposals, one for each sequence (`_most_gained`)."""
        return self._most_gained(len(proposals), (gain for _, gain in self._best(proposals)))[1]

    def _best(self, proposals: Seq[Proposal]) -> list[tuple[int, float]]:
        """Return the best draft tokens that their jobs can pay, as many as a step has room for, as (index of the
        proposal, gain), best first."""
        room_s = [self._most_lost_s - self._switch_s - proposal.account.lost_s for proposal in proposals]
        ranked = sorted((-gain, i) for i, proposal in enumerate(proposals) for gain in proposal.gains())
        n_rows, n_most = len(proposals), self.n_room(len(proposals))
        best: list[tuple[int, float]] = []
        for negative_gain, i in ranked if n_most > 0 else ():
            room_s[i] -= self._one_more_s(n_rows + len(best))
            if room_s[i] >= 0:
                best.append((i, -negative_gain))
                if len(best) == n_most:
                    break
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
        n_most = self.n_room(n_rows)
        if n_most <= 0:
            return 0, 0.0
        n_best, best = 0, 0.0
        cost_s = self.costs.of(n_rows) + made_s
        for n_drafts, gained in enumerate(accumulate(islice(gains, n_most)), 1):
            net = gained - n_rows * log((self.with_drafts_s(n_rows + n_drafts) + made_s) / cost_s)
            if net > best:
                n_best, best = n_drafts, net
        return n_best, best

    def n_room(self, n_rows: int) -> int:
        """Return how many draft tokens a step of n_rows has room for; none if it is not positive."""
        return min(self._n_most, self.costs.widest - n_rows)

    def with_drafts_s(self, n_tokens: int) -> float:
        return self.costs.of(n_tokens) + self._switch_s

    def _one_more_s(self, n_tokens: int) -> float:
        return self.costs.of(n_tokens + 1) - self.costs.of(n_tokens)

    @property
    def _most_lost_s(self) -> float:
        return self.with_drafts_s(min(1 + self._n_most, self.costs.widest))
