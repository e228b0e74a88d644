"""Guessed tokens in decode steps: offered by a job's own text, as many as pay, judged by what was drawn.

Owns who may be guessed for. Knows neither how guesses are found (ngram.py) nor when they pay (speculation.py). A
draft model's guesses would come in here, in place of a lookup's. Step thread.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from msgspec.structs import replace

from worker.engine.backend import MAX_DRAFTS, Sampled, Step
from worker.engine.ngram import NO_DRAFT, Draft
from worker.engine.sequence import Sequence, State
from worker.engine.speculation import Candidate, Speculation
from worker.engine.step_report import StepReport
from worker.wire.messages import SlotId, TokenId

Running = Mapping[SlotId, Sequence]


class Drafts:
    """Without `row_costs` (tokens in a step, seconds) nothing is guessed."""

    def __init__(self, row_costs: tuple[tuple[int, float], ...]) -> None:
        self._speculation = Speculation(row_costs, MAX_DRAFTS)
        self._is_on = bool(row_costs)
        self._offers: dict[SlotId, Draft] = {}
        """Of the step that runs."""

    def added_to(self, step: Step, running: Running, n_free_cells: int) -> Step:
        """The step, where it is a decode step with guesses that pay and have room, and no prompt waits for it."""
        self._offers = {}
        if step.kind != "decode" or not self._is_on or step.n_tokens + MAX_DRAFTS > n_free_cells:
            return step
        if any(sequence.state is State.PREFILL for sequence in running.values()):
            return step
        n_most = self._speculation.most_drafts(len(step.slices))
        if n_most == 0:
            return step
        self._offers = {piece.slot: _offer(running[piece.slot], n_most) for piece in step.slices}
        if not any(offer.tokens for offer in self._offers.values()):
            return step
        candidates = [Candidate(running[slot].acceptance, offer) for slot, offer in self._offers.items()]
        counts = self._speculation.plan(candidates)
        if not any(counts):
            return step
        offers = zip(step.slices, self._offers.values(), counts, strict=True)
        return replace(
            step,
            slices=tuple(
                running[piece.slot].decode_slice(offer.tokens[:count]) if count else piece
                for piece, offer, count in offers
            ),
        )

    def judge(self, step: Step, sampled: Seq[Sampled], running: Running, seconds: float, news: StepReport) -> None:
        """Learn from a decode step that ran, before its draws are taken."""
        if not self._is_on:
            return
        self._speculation.took(step.n_tokens, seconds)
        if not self._offers:
            return
        drawn: dict[SlotId, list[TokenId]] = {}
        for each in sampled:
            drawn.setdefault(each.slot, []).append(each.token)
        for piece in step.slices:
            if piece.slot in drawn:
                running[piece.slot].acceptance.saw(self._offers[piece.slot], drawn[piece.slot])
                news.n_drafted += piece.n_drafts
                news.n_accepted += len(drawn[piece.slot]) - 1


def _offer(sequence: Sequence, n_most: int) -> Draft:
    """Nothing where the next token is known, behind the last allowed token, or that a constraint forbids."""
    n_allowed = min(n_most, sequence.max_tokens - len(sequence.generated) - 1)
    if sequence.n_to_compute > 1 or sequence.forced or n_allowed <= 0:
        return NO_DRAFT
    offer = sequence.lookup.propose(n_allowed)
    if sequence.constraint is None or not offer.tokens:
        return offer
    return Draft(offer.tokens[: sequence.constraint.n_allowed(offer.tokens)], offer.n_matched)
