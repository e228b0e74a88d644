"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

Owns the model and its context together, and the splitting of a step that is larger than a batch. Knows nothing of jobs.
Runs on the step thread; `request_abort` may come from any.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from worker.engine.contract import BadBatch, NoRoom, Sampled, Sampling, Slice, SlotId, Step, TokenId
from worker.llama.context import Context
from worker.llama.model import Model
from worker.sampling.sample import sample


class LlamaRunner:
    """The engine's Runner (contract.py) on a real model."""

    def __init__(self, model: Model, context: Context) -> None:
        self.model = model
        self.context = context

    def run(self, step: Step) -> list[Sampled]:
        """As Runner.run: all of the step or, for NoRoom and BadBatch, nothing of it."""
        sampled: list[Sampled] = []
        computed: list[Slice] = []
        try:
            for batch in batches(step.slices, self.context.n_batch):
                sampled += self._run_batch(batch)
                computed += batch
        except (NoRoom, BadBatch):
            for piece in reversed(computed):
                self.trim(piece.slot, piece.start)
            raise
        return sampled

    def trim(self, slot: SlotId, n_keep: int) -> None:
        self.context.trim(slot, n_keep)

    def request_abort(self) -> None:
        self.context.request_abort()

    def forget_abort(self) -> None:
        self.context.forget_abort()

    def close(self) -> None:
        """Free context and model. Idempotent."""
        self.model.close()

    def _run_batch(self, batch: Seq[Slice]) -> list[Sampled]:
        indexes = iter(self.context.decode(batch))
        return [self._draw(piece, piece.sampling, next(indexes)) for piece in batch if piece.sampling is not None]

    def _draw(self, piece: Slice, sampling: Sampling, index: int) -> Sampled:
        logits = self.context.logits(index)
        try:
            token = TokenId(sample(logits, sampling, piece.generated))
        except ValueError as error:
            # Logits that are not numbers are this slot's misfortune; its neighbours' are their own.
            return Sampled(piece.slot, TokenId(0), b"", is_end=False, error=str(error))
        return Sampled(piece.slot, token, self.model.piece(token), self.model.is_end(token))


def batches(slices: Seq[Slice], n_batch: int) -> Iterator[Seq[Slice]]:
    """The slices in order, cut into batches of at most `n_batch` tokens; usually one, as it is.

    Only the last part of a slice draws, and no batch has two parts of one slot.
    """
    if sum(len(piece.tokens) for piece in slices) <= n_batch:
        yield slices
        return
    batch: list[Slice] = []
    room = n_batch
    for piece in slices:
        for part in _parts(piece, room, n_batch):
            if len(part.tokens) > room:
                yield batch
                batch, room = [], n_batch
            batch.append(part)
            room -= len(part.tokens)
    yield batch


def _parts(piece: Slice, first: int, rest: int) -> Iterator[Slice]:
    """A slice in parts of at most `rest` tokens, the first of at most `first` (0: there is no such part)."""
    begin, end = 0, first or rest
    while end < len(piece.tokens):
        yield replace(piece, start=piece.start + begin, tokens=piece.tokens[begin:end], sampling=None)
        begin, end = end, end + rest
    yield replace(piece, start=piece.start + begin, tokens=piece.tokens[begin:])
