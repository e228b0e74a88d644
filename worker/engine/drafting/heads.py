"""Drafts from the model's own next-token head (MTP), which reads a token with the model's hidden row of the one before.

A head drafts as a draft model does (draft_model.py), but only where there are rows: it sees no token before the first
that has one, and what it drafted itself it computes again from the model's rows once these are there. This module owns
that difference, and the choice of one of the two. It is pure and runs on the step thread.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from worker.engine.backend import HiddenRows, LoadedDraft
from worker.engine.config import EngineConfig
from worker.engine.drafting.acceptance import Draft
from worker.engine.drafting.draft_model import DraftModel, Followed
from worker.engine.sequence import Sequence


class Head(DraftModel):
    """A DraftModel whose runner is a head that reads hidden rows."""

    @property
    def _hidden(self) -> HiddenRows:
        assert self._draft.hidden is not None
        return self._draft.hidden

    def follow(self, sequences: Seq[Sequence]) -> list[Followed]:
        """Return the head's state of those sequences whose last computed token has a row."""
        followed = super().follow(sequences)
        return [each for each in followed if each.first < len(each.sequence.tokens)]

    def _follow(self, sequence: Sequence) -> Followed:
        assert sequence.slot is not None
        before = self._followed.get(sequence.slot)
        followed = super()._follow(sequence)
        n_tokens = len(sequence.tokens)
        rows = self._hidden.kept(followed.slot, n_tokens - 1)
        has_rows = len(rows) > 0 and rows.stop == n_tokens - 1
        # A token needs the row of the one before it.
        if has_rows and followed is before and rows.start < followed.first + len(followed.held):
            return followed
        followed.first = rows.start + 1 if has_rows else n_tokens
        self._forget(followed, 0)
        self._hidden.begin(followed.slot, followed.first)
        return followed

    def propose(self, wanted: Seq[tuple[Sequence, int]]) -> list[Draft]:
        drafts = super().propose(wanted)
        self._unless_it_fails(lambda: self._forget_drafts([sequence for sequence, _ in wanted]), None)
        return drafts

    def _forget_drafts(self, sequences: Seq[Sequence]) -> None:
        """Drop the cells of draft tokens, which were computed from the head's own rows."""
        for sequence in sequences:
            assert sequence.slot is not None
            followed = self._followed[sequence.slot]
            self._forget(followed, min(len(followed.held), len(sequence.tokens) - followed.first))


def draft_model_of(
    draft: LoadedDraft | None,
    config: EngineConfig,
    n_most: int,
    clock: Callable[[], float],
    warn: Callable[[str], None],
) -> DraftModel | None:
    """Return what is asked for drafts: a draft model, or the model's own head; None if nothing is."""
    if draft is None or not config.row_costs or not draft.row_costs or not n_most:
        return None
    kind, name = (DraftModel, "draft model") if draft.hidden is None else (Head, "next-token head")
    return kind(
        draft,
        n_slots=config.n_slots,
        n_most=n_most,
        itl_target_s=config.itl_target_s,
        clock=clock,
        on_lost=lambda why: warn(f"the {name} has failed and is not asked any more: {why}"),
    )
