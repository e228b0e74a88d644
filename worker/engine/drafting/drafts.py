"""Drafts in decode steps: the best draft of any source, with as many tokens as pay, judged by the draws.

This module owns which jobs have drafts and from which `DraftSource` (`Drafts` has the list). It knows neither how a
draft is found (ngram.py, predicted.py, history.py, draft_model.py), nor how many tokens of it pay (speculation.py), nor
the meaning of a token. It is pure and runs on the step thread.

No step takes a draft only to find out whether it would be right.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

from msgspec.structs import replace

from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Draft
from worker.engine.drafting.asking import Asking
from worker.engine.drafting.draft_model import DraftModel
from worker.engine.drafting.even_steps import EvenSpeculation
from worker.engine.drafting.history import History
from worker.engine.drafting.speculation import Proposal, Running, Speculation, n_allowed, permitted
from worker.engine.salt import salt_of
from worker.engine.sequence import Sequence, State
from worker.engine.step import Sampled, Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import SlotId, TokenId

LOOKING_SHARE = 0.01
"""The share of the steps' time that may go into looking for drafts that do not pay. On a CPU the look never takes as
long; on a GPU the lookups of 16 jobs take 0.25 ms of a step of 7."""
MAX_RESTING = 16
"""The largest number of steps in a row without a look: one look that was delayed by something else must not end all
drafts."""

N_READ = 256
"""The number of tokens of finished jobs that are indexed for other jobs after a step, at about a microsecond each. A
step generates fewer."""


class DraftSource(Protocol):
    """A source of drafts. Each source proposes for all sequences of a step, and is judged by every draw."""

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> Seq[Draft]:
        """Return for each sequence, in order, a draft of at most the wanted number of tokens; it may be empty."""
        ...

    def acceptance(self, sequence: Sequence) -> Acceptance:
        """Return how often such drafts were right, as far as this applies to the sequence. It is the same object while
        the sequence runs; the judge of drafts updates it."""
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
    """Drafts from answers of other jobs, except for salted ones. Their acceptance is learned from all jobs together, so
    that a job begins with it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._acceptance = Acceptance()

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        return [
            NO_DRAFT if salt_of(sequence.prompt) else self._history.propose(sequence.tokens, sequence.match, n_most)
            for sequence, n_most in wanted
        ]

    def acceptance(self, sequence: Sequence) -> Acceptance:  # noqa: ARG002 - the same for all
        return self._acceptance


class Drafts:
    """The drafts of all jobs, from each DraftSource that is on: `has_own_text` for a job's own text and its predicted
    text, `history_bytes` for other jobs' answers, `model` for a draft model. If `row_costs` (tokens in a decode step,
    seconds it takes) is empty, there are no drafts. `switch_s` is as in Speculation. `clock` gives seconds. If `n_even`
    is not 0, all drafts of a step have the same number of tokens, at most that many.
    """

    def __init__(
        self,
        row_costs: tuple[tuple[int, float], ...],
        history_bytes: int,
        *,
        switch_s: float = 0.0,
        n_even: int = 0,
        has_own_text: bool = True,
        model: DraftModel | None = None,
        clock: Callable[[], float],
    ) -> None:
        speculation = EvenSpeculation(row_costs, n_even, switch_s) if n_even else None
        self._speculation = speculation or Speculation(row_costs, MAX_DRAFTS, switch_s)
        self._is_on = bool(row_costs)
        self._history = History(history_bytes if row_costs else 0)
        self._sources: list[DraftSource] = [OwnText(), PredictedTexts()] if has_own_text else []
        if self._history.n_bytes:
            self._sources.append(EarlierAnswers(self._history))
        self._model = model
        self._asking = None if model is None else Asking(model, self._speculation, clock)
        self._clock = clock
        self._proposals: dict[SlotId, list[Proposal]] = {}
        """The proposals of all sources for the current step, also those that the step did not take."""
        self._n_resting = 0
        """The number of steps until the next look for drafts."""
        self._asked: set[SlotId] = set()
        """The slots for whose sequences the draft model has made drafts."""

    def remember(self, sequence: Sequence) -> None:
        """Keep a copy of a finished job's answer, unless it is salted; `learn` indexes it."""
        if not salt_of(sequence.prompt):
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
        if self._asking is not None:
            made_s, self._asked = self._asking.ask({slot: running[slot] for slot in self._proposals}, self._proposals)
        best = [self._speculation.best(proposals, len(step.slices)) for proposals in self._proposals.values()]
        if self._model is None and not any(proposal.draft.tokens for proposal in best):
            return step
        counts = self._speculation.plan(best, made_s)
        if not any(counts):
            return step
        slices = [
            running[slice_.slot].decode_slice(proposal.draft.tokens[:count]) if count else slice_
            for slice_, proposal, count in zip(step.slices, best, counts, strict=True)
        ]
        return replace(step, slices=self._speculation.in_order(slices))

    def _of_all_sources(self, sequences: Running, n_most: int) -> dict[SlotId, list[Proposal]]:
        wanted = [(sequence, n_allowed(sequence, n_most)) for sequence in sequences.values()]
        found = {slot: [Proposal(each.account, each.acceptance, NO_DRAFT)] for slot, each in sequences.items()}
        for source in self._sources:
            for (slot, sequence), draft in zip(sequences.items(), source.propose(wanted), strict=True):
                if draft.tokens:
                    proposal = Proposal(sequence.account, source.acceptance(sequence), permitted(draft, sequence))
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
