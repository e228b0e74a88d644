"""The model's next-token head (MTP): a context of its own beside the model's, or the reason why it does not draft.

A head that cannot be had is no failure of the load: the model serves without it.
"""

from dataclasses import dataclass, field
from typing import Any

from worker.engine.backend import LoadedDraft
from worker.engine.step import StepFailed
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.llama.context import Context
from worker.llama.heads import HeadContext, ModelContext, check_positions, row_length
from worker.llama.hidden_rows import HiddenRows
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.warm_up import row_costs_of
from worker.loading.draft import bytes_beside
from worker.plan.buffers import BufferSizes
from worker.wire.load import HeadFacts

_OWN_SIZES = ("n_ctx", "n_threads", "n_threads_batch", "type_k", "type_v", "flash_attn")
"""The head's context has these of the model's."""


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head that drafts, or why it does not."""

    draft: LoadedDraft | None = None
    sizes: BufferSizes = field(default_factory=BufferSizes)
    """The sizes of the buffers of its context."""
    off_because: str | None = None

    @property
    def is_drafting(self) -> bool:
        return self.draft is not None

    def facts(self, model: Model) -> HeadFacts:
        return HeadFacts(off_because=self.off_because, memory_bytes=bytes_beside(model, model, self.sizes))


def contexts_of(model: Model, n_slots: int, sizes: dict[str, Any]) -> tuple[Context, LoadedHead]:
    """The context of a model that was loaded with its head, and the head's. `n_slots`: those of jobs. `sizes`: what
    the model's context is made with.

    Raises: as Context does, for the model's own.
    """
    hidden = HiddenRows(n_slots, row_length(model))
    try:
        check_positions(model)
        context = ModelContext(model, hidden, **sizes)
    except LookupError as error:
        return Context(model, **sizes), LoadedHead(off_because=str(error))
    try:
        head = HeadContext(model, hidden, n_slots=n_slots, **{name: sizes[name] for name in _OWN_SIZES})
        runner = LlamaRunner(model, head)
        draft = LoadedDraft(runner, row_costs_of(runner), hidden)
    except (ModelLoadFailed, InsufficientMemory, StepFailed, RuntimeError) as error:
        return context, LoadedHead(off_because=f"its first steps have failed: {error}")
    return context, LoadedHead(draft, head.sizes)
