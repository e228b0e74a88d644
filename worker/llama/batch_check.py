"""What may be asked of a context: the gate that every slice of a batch passes.

Owns the refusals; many wrong arguments would abort the process. Knows nothing of the library. The context's thread.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from worker.engine.backend import BadBatch, Slice
from worker.wire.messages import SlotId


@dataclass(frozen=True, slots=True)
class Gate:
    """The limits of one context."""

    n_batch: int
    """Tokens of a batch."""
    n_outputs: int
    """Rows of logits of a batch."""
    n_slots: int
    n_vocab: int
    n_held: Callable[[SlotId], int]
    """The cells of a slot: where its next token goes."""

    def check(self, slices: Seq[Slice]) -> int:
        """How many tokens these are. Raises: BadBatch."""
        n_tokens = sum([len(piece.tokens) for piece in slices])
        if not 1 <= n_tokens <= self.n_batch:
            raise BadBatch(f"a batch of {n_tokens} tokens; 1 to {self.n_batch} are possible")
        n_outputs = sum([piece.n_drafts + 1 for piece in slices if piece.sampling is not None])
        if n_outputs > self.n_outputs:
            raise BadBatch(f"logits of {n_outputs} tokens; a batch has at most {self.n_outputs}")
        if len({piece.slot for piece in slices}) < len(slices):
            raise BadBatch(f"a slot appears twice in one batch: {[piece.slot for piece in slices]}")
        for piece in slices:
            self._check(piece)
        return n_tokens

    def _check(self, piece: Slice) -> None:
        tokens = piece.tokens
        if not 0 <= piece.slot < self.n_slots:
            raise BadBatch(f"slot {piece.slot}; there are {self.n_slots}")
        if not tokens:
            raise BadBatch(f"slot {piece.slot}: a slice without tokens")
        if min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise BadBatch(f"slot {piece.slot}: a token outside the vocabulary of {self.n_vocab}")
        if piece.start != (n_held := self.n_held(piece.slot)):
            raise BadBatch(f"slot {piece.slot}: position {piece.start} does not follow its {n_held} cells")
        if piece.n_drafts and (piece.sampling is None or not 0 < piece.n_drafts < len(tokens)):
            raise BadBatch(f"slot {piece.slot}: {piece.n_drafts} guesses among {len(tokens)} tokens cannot be drawn")
