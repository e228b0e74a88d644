"""The source of drafts that is loaded with a model: a draft model, or the model's own next-token head (MTP).

A head that cannot be had is no failure of the load: the model serves without it.
"""

from dataclasses import dataclass, field
from typing import Any

from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedDraft
from worker.engine.step import StepFailed
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.llama.context import Context
from worker.llama.heads import HeadContext, ModelContext, StoredRows, check_positions, row_length
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.warm_up import row_costs_of
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.placement import Placement
from worker.wire.load import DraftModelFacts, HeadFacts

_OWN_SIZES = ("n_ctx", "n_threads", "n_threads_batch", "type_k", "type_v", "flash_attn")
"""The head's context has these of the model's."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A draft model, and its place beside the served one."""

    config: Configure
    info: ModelInfo
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """The draft model or head that drafts for a model, if any."""

    draft: LoadedDraft | None = None
    sizes: BufferSizes = field(default_factory=BufferSizes)
    """The sizes of the buffers that it has beside the model's."""
    model_bytes: int = 0
    """The bytes of a draft model on the devices of the served one."""
    model: DraftModelFacts | None = None
    """The facts of a draft model."""
    head: HeadFacts | None = None
    """The facts of the model's own head, and the reason why it does not draft."""


def without(why_no_head: str) -> Drafting:
    return Drafting(head=HeadFacts(off_because=why_no_head))


def with_head(model: Model, n_slots: int, sizes: dict[str, Any]) -> tuple[Context, Drafting]:
    """Make the context of a model that was loaded with its head, and the head's. `n_slots`: those of jobs. `sizes`:
    what the model's context is made with. Raises: as Context does, for the model's own.
    """
    try:
        check_positions(model)
        hidden = StoredRows(n_slots, row_length(model))
        context = ModelContext(model, hidden, **sizes)
    except LookupError as error:
        return Context(model, **sizes), without(str(error))
    try:
        head = _head(model, hidden, n_slots, sizes)
        runner = LlamaRunner(model, head)
        draft = LoadedDraft(runner, row_costs_of(runner), hidden)
    except (ModelLoadFailed, InsufficientMemory, StepFailed, RuntimeError) as error:
        return context, without(f"its first steps have failed: {error}")
    facts = HeadFacts(memory_bytes=_bytes_beside(model, model, head.sizes))
    return context, Drafting(draft=draft, sizes=head.sizes, head=facts)


def bare_contexts(model: Model, n_slots: int, sizes: dict[str, Any], *, has_head: bool) -> list[Context]:
    """The context of a model and, if `has_head` and it can be had, that of its head. Raises: as Context does."""
    if not has_head:
        return [Context(model, **sizes)]
    try:
        check_positions(model)
        hidden = StoredRows(n_slots, row_length(model))
        return [ModelContext(model, hidden, **sizes), _head(model, hidden, n_slots, sizes)]
    except LookupError:
        return [Context(model, **sizes)]


def _head(model: Model, hidden: StoredRows, n_slots: int, sizes: dict[str, Any]) -> HeadContext:
    return HeadContext(model, hidden, n_slots=n_slots, **{name: sizes[name] for name in _OWN_SIZES})


def with_draft_model(beside: Beside, model: Model, sizes: dict[str, Any], served: Model) -> Drafting:
    """Make the context of a loaded draft model. Raises: ModelLoadFailed where it cannot draft for the served one."""
    path = beside.config.model_path
    check_same_vocabulary(path, model, served)
    runner = LlamaRunner(model, Context(model, **sizes))
    if not runner.kv.can_share:
        raise ModelLoadFailed(f"--draft-model {path}: its KV cache cannot be cut, so it cannot draft: use another one")
    device = beside.placement.device
    facts = DraftModelFacts(
        name=beside.info.name,
        quant_kind=beside.info.quant_kind,
        device=f"{device.backend}:{device.index}",
        memory_bytes=runner.sizes.total_bytes,
    )
    return Drafting(
        draft=LoadedDraft(runner, row_costs_of(runner)),
        sizes=runner.sizes,
        model_bytes=_bytes_beside(served, model, runner.sizes),
        model=facts,
    )


def _bytes_beside(served: Model, draft: Model, sizes: BufferSizes) -> int:
    """Return how many bytes of what drafts are on the devices of the served model."""
    if served.device.is_gpu:
        return sum(map(sizes.on_device, served.device_names))
    return sizes.total_bytes - sum(sizes.on_device(gpu.name) for gpu in draft.devices if gpu.is_gpu)


def check_same_vocabulary(path: str, draft: Model, served: Model) -> None:
    """Raises: ModelLoadFailed unless every token means the same to both models, as drafted tokens must."""
    difference = _difference(draft, served)
    if difference is not None:
        raise ModelLoadFailed(
            f"--draft-model {path}: its vocabulary is not the model's: {difference}; use a draft model of the same "
            "family, or remove --draft-model"
        )


def _difference(draft: Model, served: Model) -> str | None:
    """The first difference of two vocabularies, in words."""
    if draft.n_vocab != served.n_vocab:
        return f"it has {draft.n_vocab} tokens, the model's has {served.n_vocab}"
    for token, texts in enumerate(zip(draft.token_texts(), served.token_texts(), strict=True)):
        if texts[0] != texts[1]:
            own, other = (repr(text.decode(errors="replace")) for text in texts)
            return f"token {token} is {own} there, {other} in the model's"
    specials = served.special_tokens()
    for kind, token_id in draft.special_tokens().items():
        if specials[kind] != token_id:
            return f"its {kind} token is {token_id}, the model's is {specials[kind]}"
    own_ends, ends = draft.ends.tolist(), served.ends.tolist()
    return None if own_ends == ends else f"its answers end with the tokens {own_ends}, the model's with {ends}"
