"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

Owns the model and its context together, and the splitting of a step that is larger than a batch. Knows nothing of jobs.
Runs on the step thread; `request_abort` may come from any.
"""

import struct
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import islice, zip_longest

from worker.engine.backend import MAX_TOPS, BadBatch, NoRoom, Sampled, Score, Scoring, Slice, Step
from worker.llama.batch import batches
from worker.llama.buffers import BufferSizes
from worker.llama.constraint import Constraint
from worker.llama.context import Context, Logits
from worker.llama.model import Model
from worker.sampling.logprobs import log_probabilities
from worker.sampling.sample import sample
from worker.wire.messages import Logprob, Sampling, TokenId, TopToken

_ENTRY = struct.Struct("<id")
"""A token and its log-probability. A score has one for the prompt's own token, and then the most probable ones."""


class LlamaRunner:
    """The engine's Runner (backend.py) on a real model."""

    def __init__(self, model: Model, context: Context) -> None:
        self.model = model
        self.context = context
        self.kv = context.kv

    def run(self, step: Step) -> list[Sampled]:
        """Run the step as Runner.run says: all of it or, for NoRoom and BadBatch, nothing of it."""
        sampled: list[Sampled] = []
        computed: list[Slice] = []
        try:
            for batch in self.batches(step.slices):
                sampled += self._run_batch(batch)
                computed += batch
        except (NoRoom, BadBatch):
            for slice_ in reversed(computed):
                self.kv.trim(slice_.slot, slice_.start)
            raise
        return sampled

    def batches(self, slices: Seq[Slice]) -> Iterator[Seq[Slice]]:
        """A step cut into what the context decodes at once: groups of rows, batches of tokens."""
        for group in self.context.row_groups.split(slices):
            yield from batches(group, self.context.n_batch)

    @property
    def n_threads(self) -> int:
        return self.context.n_threads

    @property
    def sizes(self) -> BufferSizes:
        """The sizes of the model's buffers and the context's."""
        return self.model.sizes + self.context.sizes

    def logprob(self, score: Score, n_top: int) -> Logprob:
        """What a score of `run` says, with so many of the most probable tokens."""
        (token, logprob), *top = _ENTRY.iter_unpack(score[: _ENTRY.size * (1 + n_top)])
        return self._told(TokenId(token), logprob, top)

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
        for slice_ in batch:
            if slice_.scoring is not None:
                sampled += self._score(slice_, slice_.scoring, list(islice(indexes, slice_.n_rows)))
            elif slice_.n_drafts:
                sampled += self._draw_after_drafts(slice_, list(islice(indexes, slice_.n_drafts + 1)))
            elif slice_.sampling is not None:
                sampled.append(self._draw(slice_, slice_.sampling, slice_.generated, next(indexes)))
        return sampled

    def _score(self, slice_: Slice, scoring: Scoring, indexes: Seq[int]) -> list[Sampled]:
        """Score the tokens behind the slice's own, and draw behind the last if that is wanted."""
        try:
            scoring.scores[slice_.start + 1 :] = [
                self._score_of(index, token) for index, token in zip(indexes, scoring.targets, strict=False)
            ]
        except ValueError as error:
            return [Sampled(slice_.slot, TokenId(0), b"", is_end=False, error=str(error))]
        if slice_.sampling is None:
            return []
        return [self._draw(slice_, slice_.sampling, slice_.generated, indexes[-1])]

    def _score_of(self, index: int, token: TokenId) -> Score:
        logprob, top = log_probabilities(self.context.logits(index), token, MAX_TOPS)
        return Score(b"".join(_ENTRY.pack(*entry) for entry in ((token, logprob), *top)))

    def _draw_after_drafts(self, slice_: Slice, indexes: Seq[int]) -> list[Sampled]:
        """A token at each index, until one is not the draft that the next index was computed from, or ends the job, or
        leaves no choice about the next. The constraint is left as it was.
        """
        sampling = slice_.sampling
        assert sampling is not None, "the context's limits have seen it"
        constraint = _constraint_of(slice_)
        generated = list(slice_.generated)
        n_ahead = 0
        drawn: list[Sampled] = []
        for index, draft in zip_longest(indexes, slice_.tokens[-slice_.n_drafts :]):
            sampled = self._draw(slice_, sampling, generated, index)
            drawn.append(sampled)
            is_last = sampled.is_end or sampled.error is not None or sampled.token in sampling.stop_token_ids
            if is_last or sampled.token != draft:
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

    def _draw(self, slice_: Slice, sampling: Sampling, generated: Seq[TokenId], index: int) -> Sampled:
        logits = self.context.logits(index)
        constraint = _constraint_of(slice_)
        try:
            if slice_.forced is not None:
                token = slice_.forced.token
            else:
                allowed = None if constraint is None else constraint.allowed()
                token = sample(logits, sampling, generated, self.model.ends, allowed)
            logprob = None if sampling.logprobs is None else self._logprob(logits, token, sampling.logprobs)
        except ValueError as error:
            # Logits that are not numbers are this slot's misfortune; its neighbours' are their own.
            return Sampled(slice_.slot, TokenId(0), b"", is_end=False, error=str(error))
        return Sampled(slice_.slot, token, self.model.piece(token), self.model.is_end(token), logprob=logprob)

    def _logprob(self, logits: Logits, token: TokenId, n_top: int) -> Logprob:
        return self._told(token, *log_probabilities(logits, token, n_top))

    def _told(self, token: TokenId, logprob: float, top: Iterable[tuple[int, float]]) -> Logprob:
        return Logprob(self._top_token(token, logprob), tuple(self._top_token(TokenId(i), at) for i, at in top))

    def _top_token(self, token: TokenId, logprob: float) -> TopToken:
        piece = self.model.piece(token)
        text = piece.decode(errors="replace")
        return TopToken(text, token, logprob, None if text.encode() == piece else piece)


def _constraint_of(slice_: Slice) -> Constraint | None:
    assert slice_.constraint is None or isinstance(slice_.constraint, Constraint), "constraint.py makes them all"
    return slice_.constraint
