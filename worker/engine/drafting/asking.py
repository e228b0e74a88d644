"""Asks the draft model for drafts in those steps where they are expected to win more than they cost.

This module owns when it is asked, for which sequences, and when it reads along. draft_model.py makes the drafts, and
speculation.py knows what pays. It is pure and runs on the step thread.
"""

from collections.abc import Callable, Mapping

from worker.engine.drafting.draft_model import HALF_LIFE_STEPS, LIKELY_TOKENS, DraftModel, Followed
from worker.engine.drafting.speculation import Proposal, Running, Speculation, n_allowed, permitted
from worker.engine.sequence import Sequence
from worker.wire.jobs import SlotId

PAYBACK = 2.0
"""Reading along must be expected to win this many times its cost: an answer may be shorter than expected, and drafts
may be wrong more often."""

Proposals = Mapping[SlotId, list[Proposal]]


class Asking:
    """`clock` gives seconds."""

    def __init__(self, model: DraftModel, speculation: Speculation, clock: Callable[[], float]) -> None:
        self._model = model
        self._speculation = speculation
        self._clock = clock

    def ask(self, sequences: Running, proposals: Proposals) -> tuple[float, set[SlotId]]:
        """Run the draft model where it is expected to pay, and add its drafts to the proposals. Return the seconds that
        this took, and the slots of these sequences.
        """
        model, n_rows, speculation = self._model, len(sequences), self._speculation
        if model.is_lost:
            return 0.0, set()
        followed = model.follow([each for each in sequences.values() if n_allowed(each, 1)])
        self._catch_up([each for each in followed if not each.is_ready], n_rows)
        ready = [each for each in followed if each.is_ready and speculation.can_pay(each.sequence.account)]
        ready.sort(key=lambda each: -each.worth.asked.rate(0))
        gained = speculation.gained([speculation.best(each, n_rows) for each in proposals.values()])
        n_asked, depth = speculation.asked([each.worth.asked for each in ready], n_rows, model, gained)
        for each in ready[n_asked:]:
            each.worth.fade(HALF_LIFE_STEPS)
        if not n_asked:
            return 0.0, set()
        return self._take_drafts([each.sequence for each in ready[:n_asked]], depth, proposals)

    def _take_drafts(self, sequences: list[Sequence], depth: int, proposals: Proposals) -> tuple[float, set[SlotId]]:
        model, asked = self._model, set[SlotId]()
        began_s = self._clock()
        drafts = model.propose([(sequence, n_allowed(sequence, depth)) for sequence in sequences])
        made_s = self._clock() - began_s
        for sequence, draft in zip(sequences, drafts, strict=True):
            assert sequence.slot is not None
            sequence.account.lost_s += made_s / len(sequences)
            proposal = Proposal(sequence.account, model.acceptance(sequence), permitted(draft, sequence))
            proposals[sequence.slot].append(proposal)
            asked.add(sequence.slot)
        return made_s, asked

    def _catch_up(self, lacking: list[Followed], n_rows: int) -> None:
        """Let the draft model read a part of the first sequence for which that is expected to pay."""
        speculation = self._speculation
        for each in lacking:
            sequence = each.sequence
            n_likely = min(sequence.max_tokens - len(sequence.generated), max(LIKELY_TOKENS, len(sequence.generated)))
            won_s = n_likely * speculation.saved_s(each.worth.asked, n_rows, self._model)
            if self._model.catch_up_s(each.n_lacking) <= min(speculation.spare_s, won_s / PAYBACK):
                speculation.spare_s -= self._model.catch_up(each)
                return
