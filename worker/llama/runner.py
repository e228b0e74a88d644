"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

The step thread draws, and has others draw along: numpy and ggml let other threads run while they go through a row. Each
slice has its own rows, settings and constraint, and shares nothing with another that changes, so that no other slice
can change a result, nor can the thread that draws. `request_abort` may come from any thread.
"""

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, zip_longest
from typing import NamedTuple, TypeVar

from msgspec import structs

from worker.constraints.answer import AnswerConstraint
from worker.engine.backend import Meanwhile, do_nothing
from worker.engine.sampling.row import Estimate, Logits, numpy_estimate, scaled
from worker.engine.sampling.sample import GREEDY_BELOW, log_probabilities, sample
from worker.engine.step import MAX_TOPS, BadBatch, NoRoom, Sampled, Score, Scoring, Slice, Step
from worker.llama.batch import batches
from worker.llama.context import Context
from worker.llama.library import library_function
from worker.llama.model import Model
from worker.models.plan.buffers import BufferSizes
from worker.wire.jobs import Logprob, SamplingParams, TokenId, TopToken
from worker.wire.names import N_TAIL, is_in_name

T = TypeVar("T")
R = TypeVar("R")

MAX_DRAW_THREADS = 4
"""More gain little: about a third of a draw needs the interpreter, which one thread at a time has."""

MIN_ROWS, MIN_VOCABULARY = 8, 100_000
"""The rows of a step, and the values of each, from which on several threads draw. 32 rows of 152,064 take 7.0 ms on one
thread and 5.7 on two; of 49,152 they take 2.5 and 3.7, for then threads mostly wait for the interpreter."""

_ENTRY = struct.Struct("<id")
"""A token and its log-probability. A score has one for the prompt's own token, and then the most probable ones."""


class LlamaRunner:
    """The engine's Runner (backend.py) on a real model."""

    def __init__(self, model: Model, context: Context) -> None:
        self.model = model
        self.context = context
        self.kv = context.kv
        self.is_asynchronous, self.can_abort = context.is_asynchronous, context.can_abort
        self.request_abort, self.forget_abort = context.request_abort, context.forget_abort
        self._draws = Draws(model, DrawThreads(context.n_threads))
        self.logprob = self._draws.logprob
        self.close = model.close

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        """Run the step as Runner.run says: all of it or, for NoRoom and BadBatch, nothing of it."""
        sampled: list[Sampled] = []
        computed: list[Slice] = []
        try:
            for batch in self.batches(step.slices):
                self.context.decode(batch, meanwhile)
                sampled += self._draws.of(batch, self.context.rows())
                computed += batch
                meanwhile = do_nothing
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


class DrawThreads:
    """`n_threads` at most, the step thread among them."""

    def __init__(self, n_threads: int, *, min_rows: int = MIN_ROWS, min_vocabulary: int = MIN_VOCABULARY) -> None:
        self._n_threads = min(n_threads, MAX_DRAW_THREADS)
        self._min_rows, self._min_vocabulary = min_rows, min_vocabulary
        self._helpers: ThreadPoolExecutor | None = None

    def pays(self, n_rows: int, n_vocab: int) -> bool:
        """True if several threads are to draw from `n_rows` rows of `n_vocab` values."""
        return self._n_threads > 1 and n_rows >= self._min_rows and n_vocab >= self._min_vocabulary

    def map(self, draw: Callable[[T], R], asked: Seq[T]) -> list[R]:
        """Return the results of `draw` for each, in order. Raises: as `draw`."""
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(self._n_threads - 1, thread_name_prefix="draw")
        n = self._n_threads
        parts = [self._helpers.submit(lambda part: [draw(each) for each in part], asked[at::n]) for at in range(1, n)]
        found: list[list[R]] = [[draw(each) for each in asked[::n]], *(part.result() for part in parts)]
        return [found[at % n][at // n] for at in range(len(asked))]


class _Turn(NamedTuple):
    """A slice and its rows."""

    slice_: Slice
    rows: Seq[Logits]


class Draws:
    """The draws from one model's rows."""

    def __init__(self, model: Model, threads: DrawThreads) -> None:
        self._model = model
        self._estimate = fastest_estimate()
        self._threads = threads

    def of(self, batch: Seq[Slice], rows: Logits) -> list[Sampled]:
        """Return what the slices draw, in their order; scores are written to their places first.

        `rows`: float32[n_rows, n_vocab], `n_rows` of each slice, only read. What is wrong with a slice's rows or
        constraint is the error of that slice alone.
        """
        each_row = iter(rows)
        turns = [_Turn(slice_, list(islice(each_row, slice_.n_rows))) for slice_ in batch if slice_.n_rows]
        shared = [turn for turn in turns if _is_long(turn.slice_)]
        n_rows = sum([len(turn.rows) for turn in shared])
        if not shared or not self._threads.pays(n_rows, rows.shape[1]):
            return [sampled for turn in turns for sampled in self._of_turn(turn)]
        # Looked up once, and not by several threads.
        assert self._model.pieces
        drawn = dict(zip([turn.slice_.slot for turn in shared], self._threads.map(self._of_turn, shared), strict=True))
        each = (drawn[turn.slice_.slot] if turn.slice_.slot in drawn else self._of_turn(turn) for turn in turns)
        return [sampled for of_one in each for sampled in of_one]

    def logprob(self, score: Score, n_top: int) -> Logprob:
        """Return the log-probability in a score, with the `n_top` most probable tokens."""
        (token, logprob), *top = _ENTRY.iter_unpack(score[: _ENTRY.size * (1 + n_top)])
        return self._told(TokenId(token), logprob, top)

    def _of_turn(self, turn: _Turn) -> list[Sampled]:
        """Score the tokens behind the slice's own where that is wanted, and draw where that is."""
        slice_, rows = turn
        if slice_.scoring is not None and (error := _score(slice_, slice_.scoring, rows)) is not None:
            return [Sampled(slice_.slot, TokenId(0), b"", is_end=False, error=error)]
        if slice_.sampling is None:
            return []
        if slice_.n_drafts:
            return self._draw_after_drafts(slice_, slice_.sampling, rows)
        return [self._draw(slice_, slice_.sampling, slice_.generated, rows[-1])]

    def _draw_after_drafts(self, slice_: Slice, sampling: SamplingParams, rows: Seq[Logits]) -> list[Sampled]:
        """A token from each row, until one is not the draft that the next row was computed from, or ends the job, or
        leaves no choice about the next. The constraint is left as it was.
        """
        constraint = _constraint_of(slice_)
        generated = list(slice_.generated)
        n_ahead = 0
        drawn: list[Sampled] = []
        for logits, draft in zip_longest(rows, slice_.tokens[-slice_.n_drafts :]):
            sampled = self._draw(slice_, sampling, generated, logits)
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

    def _draw(self, slice_: Slice, sampling: SamplingParams, generated: Seq[TokenId], logits: Logits) -> Sampled:
        constraint = _constraint_of(slice_)
        try:
            if slice_.forced is not None:
                token = slice_.forced.id
            else:
                allowed = None if constraint is None else constraint.allowed()
                token = sample(logits, sampling, generated, self._model.ends, allowed, estimate=self._estimate)
                token = token if constraint is None else constraint.settled(token)
            logprob = self._reported(slice_, token, generated, logits)
        except ValueError as error:
            # Logits that are not numbers are this slot's misfortune; its neighbours' are their own.
            return Sampled(slice_.slot, TokenId(0), b"", is_end=False, error=str(error))
        return Sampled(slice_.slot, token, self._model.piece(token), self._model.is_end(token), logprob=logprob)

    def _reported(self, slice_: Slice, token: TokenId, generated: Seq[TokenId], logits: Logits) -> Logprob | None:
        """Return the log-probability of a token that was drawn after `generated`, if it is wanted."""
        n_top = None if slice_.sampling is None else slice_.sampling.logprobs
        is_of_name = slice_.watches_names and is_in_name([self._model.piece(one) for one in generated[-N_TAIL:]])
        if n_top is None and not is_of_name:
            return None
        found = self._told(token, *log_probabilities(logits, token, n_top or 0))
        return structs.replace(found, is_of_name=True) if is_of_name else found

    def _told(self, token: TokenId, logprob: float, top: Iterable[tuple[int, float]]) -> Logprob:
        return Logprob(self._top_token(token, logprob), tuple(self._top_token(TokenId(i), at) for i, at in top))

    def _top_token(self, token: TokenId, logprob: float) -> TopToken:
        piece = self._model.piece(token)
        text = piece.decode(errors="replace")
        return TopToken(text, token, logprob, None if text.encode() == piece else piece)


def _is_long(slice_: Slice) -> bool:
    """True if its draws take long and need nothing but rows; a constraint belongs to the step thread, unless it lets
    anything come. A greedy one only looks for the highest value, which takes no longer than to wake a thread."""
    sampling, constraint = slice_.sampling, _constraint_of(slice_)
    if slice_.forced is not None or (constraint is not None and (constraint.is_masking or slice_.n_drafts)):
        return False
    return slice_.scoring is not None or (
        sampling is not None and (sampling.temperature >= GREEDY_BELOW or sampling.logprobs is not None)
    )


def _score(slice_: Slice, scoring: Scoring, rows: Seq[Logits]) -> str | None:
    """Score the tokens behind the slice's own; why that is impossible."""
    scores = []
    try:
        for row, token in zip(rows, scoring.targets, strict=False):
            logprob, top = log_probabilities(row, token, MAX_TOPS)
            scores.append(Score(b"".join(_ENTRY.pack(*entry) for entry in ((token, logprob), *top))))
    except ValueError as error:
        return str(error)
    scoring.scores[slice_.start + 1 :] = scores
    return None


def _constraint_of(slice_: Slice) -> AnswerConstraint | None:
    assert slice_.constraint is None or isinstance(slice_.constraint, AnswerConstraint), (
        "constraints/jobs.py makes them all"
    )
    return slice_.constraint


def fastest_estimate() -> Estimate:
    """ggml's way where the CPU backend is linked in. Where it is a module, numpy's: a module shows no kernels.

    Source: ggml_vec_soft_max_f32 (ggml/src/ggml-cpu/vec.h): y[i] = expf(x[i] - max), and the sum in float64. Its vector
    exp is off by 2 units in the last place.
    """
    try:
        soft_max = library_function(
            "ggml_vec_soft_max_f32",
            ctypes.c_double,
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float),
        )
    except AttributeError:
        return numpy_estimate

    def estimate(logits: Logits, shift: float, temperature: float) -> float:
        weights = scaled(logits, shift, 1.0 / temperature)
        address = weights.ctypes.data
        total: float = soft_max(len(weights), address, address, 0.0)
        return total

    return estimate
