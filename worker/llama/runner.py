"""Steps through llama.cpp: Step → decode → a drawn token per slice that wants one.

Owns the model and its context together, and the splitting of a step that is larger than a batch. Knows nothing of jobs
or of how a token is drawn. Runs on the step thread; `request_abort` may come from any.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from worker.engine.backend import Meanwhile, do_nothing
from worker.engine.step import BadBatch, NoRoom, Sampled, Score, Slice, Step
from worker.llama.batch import batches
from worker.llama.context import Context
from worker.llama.draws import Draws, DrawThreads
from worker.llama.model import Model
from worker.models.plan.buffers import BufferSizes
from worker.wire.jobs import Logprob


class LlamaRunner:
    """The engine's Runner (backend.py) on a real model."""

    def __init__(self, model: Model, context: Context) -> None:
        self.model = model
        self.context = context
        self.kv = context.kv
        self._draws = Draws(model, DrawThreads(context.n_threads))

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        """Run the step as Runner.run says: all of it or, for NoRoom and BadBatch, nothing of it."""
        sampled: list[Sampled] = []
        computed: list[Slice] = []
        try:
            for batch in self.batches(step.slices):
                sampled += self._run_batch(batch, meanwhile)
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
    def is_asynchronous(self) -> bool:
        return self.context.is_asynchronous

    @property
    def can_abort(self) -> bool:
        return self.context.can_abort

    @property
    def sizes(self) -> BufferSizes:
        """The sizes of the model's buffers and the context's."""
        return self.model.sizes + self.context.sizes

    def logprob(self, score: Score, n_top: int) -> Logprob:
        """Return the log-probability in a score of `run`, with the `n_top` most probable tokens."""
        return self._draws.logprob(score, n_top)

    def request_abort(self) -> None:
        self.context.request_abort()

    def forget_abort(self) -> None:
        self.context.forget_abort()

    def close(self) -> None:
        """Free context and model. Idempotent."""
        self.model.close()

    def _run_batch(self, batch: Seq[Slice], meanwhile: Meanwhile) -> list[Sampled]:
        self.context.decode(batch, meanwhile)
        return self._draws.of(batch, self.context.rows())
