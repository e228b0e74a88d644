"""Drafts in decode steps: made from a job's own text, as many as pay, judged by what was drawn.

Owns which jobs have drafts. Knows neither how a draft is found (ngram.py) nor when it pays (speculation.py). A draft
model's drafts would come in here, in place of the n-gram lookup's. Step thread.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from msgspec.structs import replace

from worker.engine.backend import MAX_DRAFTS, Sampled, Step
from worker.engine.ngram import NO_DRAFT, Draft
from worker.engine.sequence import Sequence, State
from worker.engine.speculation import Proposal, Speculation
from worker.wire.messages import SlotId, TokenId

Running = Mapping[SlotId, Sequence]


class Drafts:
    """Without `row_costs`, (tokens in a decode step, seconds it takes), there are no drafts."""

    def __init__(self, row_costs: tuple[tuple[int, float], ...]) -> None:
        self._speculation = Speculation(row_costs, MAX_DRAFTS)
        self._is_on = bool(row_costs)
        self._drafts: dict[SlotId, Draft] = {}
        """All drafts for the step that runs, also what the step did not take of them."""

    def added_to(self, step: Step, running: Running, n_free_cells: int) -> Step:
        """The step with drafts, where it is a decode step, they pay and have room, and no prompt waits for it."""
        self._drafts = {}
        if step.kind != "decode" or not self._is_on or step.n_tokens + MAX_DRAFTS > n_free_cells:
            return step
        if any(sequence.state is State.PREFILL for sequence in running.values()):
            return step
        n_most = self._speculation.most_drafts(len(step.slices))
        if n_most == 0:
            return step
        self._drafts = {slice_.slot: _draft(running[slice_.slot], n_most) for slice_ in step.slices}
        if not any(draft.tokens for draft in self._drafts.values()):
            return step
        counts = self._speculation.plan(
            [Proposal(running[slot].acceptance, draft) for slot, draft in self._drafts.items()]
        )
        if not any(counts):
            return step
        return replace(
            step,
            slices=tuple(
                running[slice_.slot].decode_slice(draft.tokens[:count]) if count else slice_
                for slice_, draft, count in zip(step.slices, self._drafts.values(), counts, strict=True)
            ),
        )

    def judge(self, step: Step, sampled: Seq[Sampled], running: Running, seconds: float) -> tuple[int, int]:
        """Learn from a step that ran, before its draws are taken: (draft tokens it computed, of these drawn)."""
        if step.kind != "decode" or not self._is_on:
            return 0, 0
        self._speculation.took(step.n_tokens, seconds)
        if not self._drafts:
            return 0, 0
        drawn: dict[SlotId, list[TokenId]] = {}
        for each in sampled:
            drawn.setdefault(each.slot, []).append(each.token)
        for slot, tokens in drawn.items():
            running[slot].acceptance.saw(self._drafts[slot], tokens)
        n_drafted = sum(slice_.n_drafts for slice_ in step.slices if slice_.slot in drawn)
        return n_drafted, len(sampled) - len(drawn)


def _draft(sequence: Sequence, n_most: int) -> Draft:
    """Up to n_most tokens; none where the next token is known, behind the last allowed token, or that a constraint
    forbids.
    """
    n_allowed = min(n_most, sequence.max_tokens - len(sequence.generated) - 1)
    if sequence.n_to_compute > 1 or sequence.forced or n_allowed <= 0:
        return NO_DRAFT
    draft = sequence.ngram_lookup.propose(n_allowed)
    if sequence.constraint is None or not draft.tokens:
        return draft
    return Draft(draft.tokens[: sequence.constraint.n_allowed(draft.tokens)], draft.n_matched)
