"""Drafts in decode steps: the best draft of any source, with as many tokens as pay, judged by the draws.

This module owns which jobs have drafts and from which `DraftSource` (`Drafts` has the list), the costs of wider steps,
and the number of draft tokens in a step: as many as pay, and never so many that a job is delayed (`Speculation`). It
knows neither how a draft is found (ngram.py, predicted.py, history.py, draft_model.py) nor the meaning of a token. It
is pure and runs on the step thread.

No step takes a draft only to find out whether it would be right. Drafts of a draft model take time to make; it is
asked for them if that is expected to pay (`Speculation.asked`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import exp, log
from typing import Protocol

from msgspec.structs import replace

from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Account, Draft
from worker.engine.drafting.draft_model import HALF_LIFE_STEPS, LIKELY_TOKENS, DraftModel, Followed
from worker.engine.drafting.history import History
from worker.engine.drafting.step_costs import StepCosts
from worker.engine.sequence import Sequence, State
from worker.engine.step import Sampled, Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import SlotId, TokenId

MIN_GAIN = 1.03
"""A step takes drafts if it is expected to be at least this many times as fast; measured costs are no more precise than
that."""
MAX_LOST = 0.02
"""Wrong drafts may cost this share of a job's time."""

N_INVESTED = 64
"""The number of tokens whose time may be spent on reading along with a prompt, beyond the time that drafts have won.
Reading along pays later or never."""

PAYBACK = 2.0
"""Reading along must be expected to win this many times its cost: an answer may be shorter than expected, and drafts
may be wrong more often."""

MAX_HELD_UP = 0.05
"""The share by which drafts of other jobs may slow a sequence down on a GPU."""

LOOKING_SHARE = 0.01
"""The share of the steps' time that may go into looking for drafts that do not pay. On a CPU the look never takes as
long; on a GPU the lookups of 16 jobs take 0.25 ms of a step of 7."""
MAX_RESTING = 16
"""The largest number of steps in a row without a look: one look that was delayed by something else must not end all
drafts."""

N_READ = 256
"""The number of tokens of finished jobs that are indexed for other jobs after a step, at about a microsecond each. A
step generates fewer."""

Running = Mapping[SlotId, Sequence]


class DraftSource(Protocol):
    """A source of drafts. Each source proposes for all sequences of a step, and is judged by every draw."""

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> Seq[Draft]:
        """Return for each sequence, in order, a draft of at most the wanted number of tokens; it may be empty."""
        ...

    def acceptance(self, sequence: Sequence) -> Acceptance:
        """Return how often such drafts were right, as far as this applies to the sequence. It is the same object while
        the sequence runs; the judge of drafts updates it."""
        ...


class Maker(Protocol):
    """The costs of drafts that take time to make. DraftModel and the tests' modelled one implement it."""

    @property
    def n_most(self) -> int:
        """The largest number of draft tokens for one sequence."""
        ...

    def draft_s(self, n_rows: int) -> float:
        """Return the seconds of one draft token for each of n_rows ≥ 1 sequences."""
        ...


class OwnText:
    """Drafts from a job's own text. Their acceptance is learned for each job."""

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        return [sequence.ngram_lookup.propose(n_most) for sequence, n_most in wanted]

    def acceptance(self, sequence: Sequence) -> Acceptance:
        return sequence.acceptance


class PredictedTexts:
    """Drafts from texts that clients predict. Their acceptance is learned for each job."""

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        return [
            NO_DRAFT if sequence.predicted is None else sequence.predicted.propose(sequence.generated, n_most)
            for sequence, n_most in wanted
        ]

    def acceptance(self, sequence: Sequence) -> Acceptance:
        return sequence.acceptance if sequence.predicted is None else sequence.predicted.acceptance


class EarlierAnswers:
    """Drafts from answers of other jobs. Their acceptance is learned from all jobs together, so that a job begins with
    it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._acceptance = Acceptance()

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        return [self._history.propose(sequence.tokens, sequence.match, n_most) for sequence, n_most in wanted]

    def acceptance(self, sequence: Sequence) -> Acceptance:  # noqa: ARG002 - the same for all
        return self._acceptance


class Drafts:
    """The drafts of all jobs, from each DraftSource that is on: `has_own_text` for a job's own text and its predicted
    text, `history_bytes` for other jobs' answers, `model` for a draft model. If `row_costs` (tokens in a decode step,
    seconds it takes) is empty, there are no drafts. `switch_s` is as in Speculation. `clock` gives seconds.
    """

    def __init__(
        self,
        row_costs: tuple[tuple[int, float], ...],
        history_bytes: int,
        *,
        switch_s: float = 0.0,
        has_own_text: bool = True,
        model: DraftModel | None = None,
        clock: Callable[[], float],
    ) -> None:
        self._speculation = Speculation(row_costs, MAX_DRAFTS, switch_s)
        self._is_on = bool(row_costs)
        self._history = History(history_bytes if row_costs else 0)
        self._sources: list[DraftSource] = [OwnText(), PredictedTexts()] if has_own_text else []
        if self._history.n_bytes:
            self._sources.append(EarlierAnswers(self._history))
        self._model = model
        self._clock = clock
        self._proposals: dict[SlotId, list[Proposal]] = {}
        """The proposals of all sources for the current step, also those that the step did not take."""
        self._n_resting = 0
        """The number of steps until the next look for drafts."""
        self._asked: set[SlotId] = set()
        """The slots for whose sequences the draft model has made drafts."""

    def remember(self, sequence: Sequence) -> None:
        """Keep a copy of a finished job's answer; `learn` indexes it."""
        self._history.remember(sequence.tokens, len(sequence.prompt))

    def learn(self, *, is_idle: bool) -> None:
        """Index the answers of finished jobs for other jobs: all of them if the engine is idle, otherwise a part."""
        while self._history.read(N_READ) and is_idle:
            pass

    def added_to(self, step: Step, running: Running, n_free_cells: int) -> Step:
        """Return the step with drafts, if it is a decode step, drafts pay and have room, and no prompt waits for it."""
        self._proposals, self._asked = {}, set()
        if step.kind != "decode" or not self._is_on or step.n_tokens + MAX_DRAFTS > n_free_cells:
            return step
        if any(sequence.state is State.PREFILL for sequence in running.values()):
            return step
        if self._n_resting:
            self._n_resting -= 1
            return step
        began_s = self._clock()
        drafted = self._with_drafts(step, running)
        if drafted is step and self._model is None:
            spent_s, step_s = self._clock() - began_s, self._speculation.cost_s(len(step.slices))
            self._n_resting = min(MAX_RESTING, int(spent_s / (LOOKING_SHARE * step_s))) if step_s else 0
        return drafted

    def catch_up(self, running: Running, n_most: int) -> None:
        """Index at most n_most tokens of prompts and answers while a device computes, so that the next look is short.
        After a long prompt it would take milliseconds."""
        if not self._is_on or not self._sources:
            return
        for sequence in running.values():
            n_most -= sequence.ngram_lookup.catch_up(n_most)
            if n_most <= 0:
                return

    def _with_drafts(self, step: Step, running: Running) -> Step:
        n_most = self._speculation.most_drafts(len(step.slices))
        if n_most == 0:
            return step
        self._proposals = self._of_all_sources({slice_.slot: running[slice_.slot] for slice_ in step.slices}, n_most)
        made_s = 0.0
        if self._model is not None and not self._model.is_lost:
            made_s = self._ask(self._model, {slot: running[slot] for slot in self._proposals})
        best = [self._speculation.best(proposals, len(step.slices)) for proposals in self._proposals.values()]
        if self._model is None and not any(proposal.draft.tokens for proposal in best):
            return step
        counts = self._speculation.plan(best, made_s)
        if not any(counts):
            return step
        return replace(
            step,
            slices=tuple(
                running[slice_.slot].decode_slice(proposal.draft.tokens[:count]) if count else slice_
                for slice_, proposal, count in zip(step.slices, best, counts, strict=True)
            ),
        )

    def _ask(self, model: DraftModel, sequences: Running) -> float:
        """Ask the draft model for drafts of the sequences for which they are expected to win more than they cost. Each
        of these then has another proposal. Return the seconds that this took.
        """
        n_rows, speculation = len(sequences), self._speculation
        followed = model.follow([each for each in sequences.values() if _n_allowed(each, 1)])
        self._catch_up(model, [each for each in followed if not each.is_ready], n_rows)
        ready = [each for each in followed if each.is_ready and speculation.can_pay(each.sequence.account)]
        ready.sort(key=lambda each: -each.worth.asked.rate(0))
        gained = speculation.gained([speculation.best(each, n_rows) for each in self._proposals.values()])
        n_asked, depth = speculation.asked([each.worth.asked for each in ready], n_rows, model, gained)
        for each in ready[n_asked:]:
            each.worth.fade(HALF_LIFE_STEPS)
        return self._take_drafts(model, [each.sequence for each in ready[:n_asked]], depth) if n_asked else 0.0

    def _take_drafts(self, model: DraftModel, sequences: list[Sequence], depth: int) -> float:
        began_s = self._clock()
        drafts = model.propose([(sequence, _n_allowed(sequence, depth)) for sequence in sequences])
        made_s = self._clock() - began_s
        for sequence, draft in zip(sequences, drafts, strict=True):
            assert sequence.slot is not None
            sequence.account.lost_s += made_s / len(sequences)
            proposal = Proposal(sequence.account, model.acceptance(sequence), _permitted(draft, sequence))
            self._proposals[sequence.slot].append(proposal)
            self._asked.add(sequence.slot)
        return made_s

    def _catch_up(self, model: DraftModel, lacking: list[Followed], n_rows: int) -> None:
        """Let the draft model read a part of the first sequence for which that is expected to pay."""
        speculation = self._speculation
        for each in lacking:
            sequence = each.sequence
            n_likely = min(sequence.max_tokens - len(sequence.generated), max(LIKELY_TOKENS, len(sequence.generated)))
            won_s = n_likely * speculation.saved_s(each.worth.asked, n_rows, model)
            if model.catch_up_s(each.n_lacking) <= min(speculation.spare_s, won_s / PAYBACK):
                speculation.spare_s -= model.catch_up(each)
                return

    def _of_all_sources(self, sequences: Running, n_most: int) -> dict[SlotId, list["Proposal"]]:
        wanted = [(sequence, _n_allowed(sequence, n_most)) for sequence in sequences.values()]
        found = {slot: [Proposal(each.account, each.acceptance, NO_DRAFT)] for slot, each in sequences.items()}
        for source in self._sources:
            for (slot, sequence), draft in zip(sequences.items(), source.propose(wanted), strict=True):
                if draft.tokens:
                    proposal = Proposal(sequence.account, source.acceptance(sequence), _permitted(draft, sequence))
                    found[slot].append(proposal)
        return found

    def judge(self, step: Step, sampled: Seq[Sampled], running: Running, seconds: float) -> tuple[int, int]:
        """Learn from a step that ran, before its draws are applied. Return the number of draft tokens that it computed,
        and how many of these were drawn. Each sequence counts its own, too.
        """
        if step.kind != "decode" or not self._is_on:
            return 0, 0
        self._speculation.took(step.n_tokens, seconds, has_drafts=any(each.n_drafts for each in step.slices))
        if not self._proposals:
            return 0, 0
        drawn: dict[SlotId, list[TokenId]] = {}
        for each in sampled:
            drawn.setdefault(each.slot, []).append(each.token)
        n_drafts = {slice_.slot: slice_.n_drafts for slice_ in step.slices if slice_.slot in drawn}
        for slot, tokens in drawn.items():
            sequence = running[slot]
            sequence.account.won(len(tokens) - 1)
            if slot not in self._asked:
                # Only the time that a draft model has won is spent on it.
                sequence.account.lost_s = max(0.0, sequence.account.lost_s)
            for proposal in self._proposals[slot]:
                proposal.acceptance.saw(proposal.draft, tokens)
            if self._model is not None:
                self._model.judge(slot, tokens)
            sequence.n_drafted += n_drafts[slot]
            sequence.n_accepted += len(tokens) - 1
        return sum(n_drafts.values()), len(sampled) - len(drawn)


def _n_allowed(sequence: Sequence, n_most: int) -> int:
    """Return how many draft tokens it may have: none if the next token is known, and none after the last
    allowed token."""
    if sequence.n_to_compute > 1 or sequence.forced:
        return 0
    return max(0, min(n_most, sequence.max_tokens - len(sequence.generated) - 1))


def _permitted(draft: Draft, sequence: Sequence) -> Draft:
    """Return the draft as far as the sequence's constraint allows it."""
    if sequence.constraint is None or not draft.tokens:
        return draft
    return Draft(draft.tokens[: sequence.constraint.n_allowed(draft.tokens)], draft.n_matched)


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
        return max(drafted, key=lambda proposal: self._most_gained(n_rows, _gains(proposal))[1])

    def plan(self, proposals: Seq[Proposal], made_s: float = 0.0) -> list[int]:
        """Return how many of its draft tokens each sequence of the step takes, in order, and put their cost on its
        account. `made_s` are the seconds that it took to make the drafts; they are on the accounts already.

        The caller gives every sequence of the step, and updates each `Account` and `Acceptance` with the draws.
        """
        n_rows = len(proposals)
        counts = [0] * n_rows
        if not 0 < n_rows <= self.costs.widest:
            return counts
        token_s = self.costs.of(n_rows) / n_rows
        for proposal in proposals:
            account = proposal.account
            account.token_s = token_s
            lost_s = account.lost_s - MAX_LOST * token_s
            account.lost_s = max(0.0, lost_s)
            self.spare_s = min(self._most_spare_s, self.spare_s + max(0.0, -lost_s))
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
        slower = self._with_drafts_s(n_rows + len(taken)) / self.costs.of(n_rows)
        return exp(min(gained)) * (1 + MAX_HELD_UP) < slower

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
        prospects = [_gains(proposal) for proposal in proposals]
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


def _gains(proposal: Proposal) -> Iterator[float]:
    """Yield how much each draft token adds to the logarithm of the sequence's expected tokens; it never rises."""
    chance = expected = 1.0
    first = proposal.draft.n_matched
    for n_matched in range(first, first + len(proposal.draft.tokens)):
        # A draft token is right only after the ones before it were.
        chance *= proposal.acceptance.rate(n_matched)
        yield log(1 + chance / expected)
        expected += chance
