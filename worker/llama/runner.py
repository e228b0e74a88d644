"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

Owns the model and its context together, and the splitting of a step that is larger than a batch. Knows nothing of jobs.
Runs on the step thread; `request_abort` may come from any.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import islice, zip_longest

from msgspec.structs import replace

from worker.engine.backend import BadBatch, NoRoom, Sampled, Saved, Slice, Step
from worker.llama.buffers import BufferSizes
from worker.llama.constraint import Constraint
from worker.llama.context import Context, Logits
from worker.llama.kv_copies import SavedCells
from worker.llama.model import Model
from worker.sampling.logprobs import log_probabilities
from worker.sampling.sample import sample
from worker.wire.messages import Logprob, Sampling, SlotId, TokenId, TopToken


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
            for batch in self.batches(step.slices):
                sampled += self._run_batch(batch)
                computed += batch
        except (NoRoom, BadBatch):
            for piece in reversed(computed):
                self.trim(piece.slot, piece.start)
            raise
        return sampled

    def batches(self, slices: Seq[Slice]) -> Iterator[Seq[Slice]]:
        """A step cut into what the context decodes at once: groups of rows, batches of tokens."""
        for group in self.context.row_groups.split(slices):
            yield from batches(group, self.context.n_batch)

    def trim(self, slot: SlotId, n_keep: int) -> None:
        self.context.trim(slot, n_keep)

    @property
    def sizes(self) -> BufferSizes:
        """Of the model's buffers and the context's."""
        return self.model.sizes + self.context.sizes

    @property
    def n_free_cells(self) -> int:
        return self.context.n_free_cells

    @property
    def can_share(self) -> bool:
        return self.context.can_share

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        self.context.share(source, target, n_tokens)

    def save(self, slot: SlotId, start: int) -> SavedCells:
        return self.context.save(slot, start)

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int) -> None:
        self.context.load(slot, [_own(part) for part in parts], n_tokens)

    def request_abort(self) -> None:
        self.context.request_abort()

    def forget_abort(self) -> None:
        self.context.forget_abort()

    def close(self) -> None:
        """Free context and model. Idempotent."""
        self.model.close()

    def _run_batch(self, batch: Seq[Slice]) -> list[Sampled]:
        indexes = iter(self.context.decode(batch))
        sampled: list[Sampled] = []
        for piece in batch:
            if piece.n_drafts:
                sampled += self._draw_guessed(piece, list(islice(indexes, piece.n_drafts + 1)))
            elif piece.sampling is not None:
                sampled.append(self._draw(piece, piece.sampling, piece.generated, next(indexes)))
        return sampled

    def _draw_guessed(self, piece: Slice, indexes: Seq[int]) -> list[Sampled]:
        """A token at each index, until one is not the guess that the next index was computed from, or ends the job, or
        leaves no choice about the next. The constraint is left as it was.
        """
        sampling = piece.sampling
        assert sampling is not None, "the context's gate has seen it"
        constraint = _constraint_of(piece)
        generated = list(piece.generated)
        n_ahead = 0
        drawn: list[Sampled] = []
        for index, guess in zip_longest(indexes, piece.tokens[-piece.n_drafts :]):
            sampled = self._draw(piece, sampling, generated, index)
            drawn.append(sampled)
            is_last = sampled.is_end or sampled.error is not None or sampled.token in sampling.stop_token_ids
            if is_last or sampled.token != guess:
                break
            generated.append(sampled.token)
            if constraint is not None:
                constraint.accept(sampled.token)
                n_ahead += 1
                if constraint.is_over or constraint.forced():
                    break
        if constraint is not None:
            constraint.take_back(n_ahead)
        return drawn

    def _draw(self, piece: Slice, sampling: Sampling, generated: Seq[TokenId], index: int) -> Sampled:
        logits = self.context.logits(index)
        constraint = _constraint_of(piece)
        try:
            if piece.forced is not None:
                token = piece.forced.token
            else:
                allowed = None if constraint is None else constraint.allowed()
                token = sample(logits, sampling, generated, self.model.ends, allowed)
            logprob = None if sampling.logprobs is None else self._logprob(logits, token, sampling.logprobs)
        except ValueError as error:
            # Logits that are not numbers are this slot's misfortune; its neighbours' are their own.
            return Sampled(piece.slot, TokenId(0), b"", is_end=False, error=str(error))
        return Sampled(piece.slot, token, self.model.piece(token), self.model.is_end(token), logprob=logprob)

    def _logprob(self, logits: Logits, token: TokenId, n_top: int) -> Logprob:
        logprob, top = log_probabilities(logits, token, n_top)
        return Logprob(self._top_token(token, logprob), tuple(self._top_token(TokenId(i), at) for i, at in top))

    def _top_token(self, token: TokenId, logprob: float) -> TopToken:
        return TopToken(self.model.piece(token).decode(errors="replace"), token, logprob)


def _own(saved: Saved) -> SavedCells:
    assert isinstance(saved, SavedCells), "save makes them all"
    return saved


def _constraint_of(piece: Slice) -> Constraint | None:
    assert piece.constraint is None or isinstance(piece.constraint, Constraint), "constraint.py makes them all"
    return piece.constraint


def batches(slices: Seq[Slice], n_batch: int) -> Iterator[Seq[Slice]]:
    """The slices in order, cut into batches of at most `n_batch` tokens; usually one, as it is.

    Only the last part of a slice draws, and has all its guesses; no batch has two parts of one slot.
    """
    if sum([len(piece.tokens) for piece in slices]) <= n_batch:
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
    """A slice in parts of at most `rest` tokens, the first of at most `first` (0: there is no such part).

    What draws stays together, though it were more.
    """
    n_before = len(piece.tokens) - piece.n_drafts - 1
    begin, end = 0, first or rest
    while end < len(piece.tokens):
        end = min(end, n_before)
        if begin < end:
            cut = piece.tokens[begin:end]
            yield replace(piece, start=piece.start + begin, tokens=cut, sampling=None, n_drafts=0)
        begin, end = end, end + max(rest, piece.n_drafts + 1)
    yield replace(piece, start=piece.start + begin, tokens=piece.tokens[begin:])
