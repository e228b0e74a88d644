"""A model's weights and its context, as a configuration and a plan ask for them: in a load and in its dry run alike;
and the source of drafts that is loaded with it, a draft model or the model's own next-token head (MTP).

A head that cannot be had is no failure of the load: the model serves without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedDraft
from worker.engine.step import StepFailed
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.host import cpu_quota
from worker.llama.context import Context
from worker.llama.devices import asked_flash, can_split_rows
from worker.llama.heads import HeadContext, ModelContext, StoredRows, positions_off
from worker.llama.invariance import type_k_of
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.seq_ids import n_retained_for
from worker.llama.threads import Threads, clocks
from worker.llama.warm_up import row_costs_of
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.memory import Plan
from worker.models.plan.placement import Group, Placement
from worker.wire.jobs import TokenId
from worker.wire.load import DraftModelFacts, HeadFacts


def load_weights(config: Configure, info: ModelInfo, placement: Placement, on_progress: Callable[[int], None]) -> Model:
    """The model where the placement says. Raises: ModelLoadFailed, InsufficientMemory."""
    return Model.load(
        info.path,
        device=placement.device,
        n_gpu_layers=placement.n_gpu_layers,
        on_progress=on_progress,
        split=split_of(config, placement.group),
        split_mode=config.split_mode,
        loads_heads=info.loads_heads,
        is_mapped=placement.weights_in_main.is_mapped,
        may_repack=placement.weights_in_main.repacked > 0,
        gaps=info.gaps,
    )


def split_of(config: Configure, group: Group) -> Group | None:
    """Return the group if the model is split over its devices.

    Raises: ModelLoadFailed where the backend cannot split rows; the library's own words would name no way out.
    """
    device = group.devices[0]
    if config.split_mode == "none" or not group.is_gpu:
        return None
    if config.split_mode == "row" and not can_split_rows(device):
        raise ModelLoadFailed(
            f"--split-mode row: the {device.backend} backend of llama.cpp cannot split rows; use --split-mode layer"
        )
    return group


def context_sizes(config: Configure, model: Model, plan: Plan) -> dict[str, Any]:
    """The arguments of a model's context. Any: sizes and words."""
    n_threads = config.threads or cpu_quota()
    # Where a result depends on how rows are shared out, their number must stay.
    may_yield = n_threads > 1 and not config.deterministic and not model.device.is_gpu
    n_retained = n_retained_for(model, plan.parallel, swa_full=plan.swa_full)
    return {
        "n_ctx": plan.n_cells + plan.n_padding_cells,
        "n_batch": config.batch_size,
        "n_ubatch": plan.ubatch_size,
        "n_seq_max": plan.parallel + n_retained,
        "n_threads": n_threads,
        "n_threads_batch": config.threads_batch or n_threads,
        "type_k": type_k_of(config, is_on_gpu=model.device.is_gpu),
        "type_v": config.cache_type_v,
        "flash_attn": asked_flash(config, model.device),
        "swa_full": plan.swa_full,
        "threads": Threads(n_threads, clocks) if may_yield else None,
        "has_padding": config.deterministic,
        "n_rows": plan.n_chunk_rows,
        "n_snapshots": plan.n_snapshots,
    }


# ── sources of drafts ────────────────────────────────────────────────────────────────────────────


_OWN_SIZES = ("n_ctx", "n_threads", "n_threads_batch", "type_k", "type_v", "flash_attn")
"""The head's context has these of the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    draft: LoadedDraft | None = None
    sizes: BufferSizes = field(default_factory=BufferSizes)
    """The sizes of the buffers that it has beside the model's."""
    model_bytes: int = 0
    """The bytes of a draft model on the devices of the served one."""
    model: DraftModelFacts | None = None
    head: HeadFacts | None = None
    """The facts of the model's own head, and the reason why it does not draft."""


def without(why_no_head: str) -> Drafting:
    return Drafting(head=HeadFacts(off_because=why_no_head))


def with_head(model: Model, n_slots: int, sizes: dict[str, Any]) -> tuple[Context, Drafting]:
    """Make the context of a model that was loaded with its head, and the head's. `n_slots`: those of jobs. `sizes`:
    what the model's context is made with. Raises: as Context does, for the model's own.
    """
    if why_off := positions_off(model):
        return Context(model, **sizes), without(why_off)
    hidden = StoredRows(model, n_slots)
    context = ModelContext(model, hidden, **sizes)
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
    if not has_head or positions_off(model):
        return [Context(model, **sizes)]
    hidden = StoredRows(model, n_slots)
    return [ModelContext(model, hidden, **sizes), _head(model, hidden, n_slots, sizes)]


def _head(model: Model, hidden: StoredRows, n_slots: int, sizes: dict[str, Any]) -> HeadContext:
    return HeadContext(model, hidden, n_slots=n_slots, **{name: sizes[name] for name in _OWN_SIZES})


def with_draft_model(config: Configure, info: ModelInfo, place: Placement, model: Model, served: Model) -> Drafting:
    """Make the context of a loaded draft model. Raises: ModelLoadFailed where it cannot draft for the served one."""
    check_same_vocabulary(config.model_path, model, served)
    runner = LlamaRunner(model, Context(model, **context_sizes(config, model, place.plan)))
    if not runner.kv.can_share:
        raise ModelLoadFailed(
            f"--draft-model {config.model_path}: its KV cache cannot be cut, so it cannot draft: use another one"
        )
    facts = DraftModelFacts(
        name=info.name,
        quant_kind=info.quant_kind,
        device=f"{place.device.backend}:{place.device.index}",
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
    if draft.n_vocab != served.n_vocab:
        return f"it has {draft.n_vocab} tokens, the model's has {served.n_vocab}"
    for token in map(TokenId, range(served.n_vocab)):
        if draft.text_of(token) != served.text_of(token):
            own, other = (repr(model.text_of(token).decode(errors="replace")) for model in (draft, served))
            return f"token {token} is {own} there, {other} in the model's"
    specials = served.special_tokens()
    for kind, token_id in draft.special_tokens().items():
        if specials[kind] != token_id:
            return f"its {kind} token is {token_id}, the model's is {specials[kind]}"
    own_ends, ends = draft.ends.tolist(), served.ends.tolist()
    return None if own_ends == ends else f"its answers end with the tokens {own_ends}, the model's with {ends}"
