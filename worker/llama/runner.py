"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

Owns the model and its context together, and the splitting of a step that is larger than a batch. Knows nothing of jobs.
Runs on the step thread; `request_abort` may come from any.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from worker.engine.backend import BadBatch, NoRoom, Sampled, Slice, Step
from worker.engine.contract import Logprob, Sampling, SlotId, TokenId, TopToken
from worker.llama.context import Context, Logits
from worker.llama.grammar import Grammar
from worker.llama.model import Model
from worker.sampling.logprobs import log_probabilities
from worker.sampling.row import NoToken
from worker.sampling.sample import sample


class LlamaRunner:
    """The engine's Runner (backend.py) on a real model."""

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
        grammar = piece.constraint
        assert grammar is None or isinstance(grammar, Grammar), "grammar.py makes them all"
        try:
            token = sample(logits, sampling, piece.generated, self.model.ends, grammar)
        except ValueError as error:
            if isinstance(error, NoToken) and grammar is not None and self._is_at_its_end(grammar):
                return Sampled(piece.slot, TokenId(0), b"", is_end=True)
            # Logits that are not numbers are this slot's misfortune; its neighbours' are their own.
            return Sampled(piece.slot, TokenId(0), b"", is_end=False, error=str(error))
        logprob = None if sampling.logprobs is None else self._logprob(logits, token, sampling.logprobs)
        return Sampled(piece.slot, token, self.model.piece(token), self.model.is_end(token), logprob=logprob)

    def _is_at_its_end(self, grammar: Grammar) -> bool:
        """Whether the vocabulary has no token that could say so, and no other may come."""
        return not self.model.ends.size and not grammar.allowed().any()

    def _logprob(self, logits: Logits, token: TokenId, n_top: int) -> Logprob:
        logprob, top = log_probabilities(logits, token, n_top)
        return Logprob(self._top_token(token, logprob), tuple(self._top_token(TokenId(i), at) for i, at in top))

    def _top_token(self, token: TokenId, logprob: float) -> TopToken:
        return TopToken(self.model.piece(token).decode(errors="replace"), token, logprob)


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
