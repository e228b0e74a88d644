"""A model's weights and its context, as a configuration and a plan ask for them: in a load and in its dry run alike."""

from collections.abc import Callable
from typing import Any

from worker.config.engine_settings import Configure
from worker.errors import ModelLoadFailed
from worker.host import cpu_quota
from worker.llama.devices import can_split_rows
from worker.llama.gpu_attention import asked_flash
from worker.llama.invariance import type_k_of
from worker.llama.model import Model, Split
from worker.llama.seq_ids import n_retained_for
from worker.llama.threads import Threads, clocks
from worker.models.facts.info import ModelInfo
from worker.models.plan.memory import Plan
from worker.models.plan.placement import Group, Placement


def load_weights(config: Configure, info: ModelInfo, placement: Placement, on_progress: Callable[[int], None]) -> Model:
    """The model where the placement says. Raises: ModelLoadFailed, InsufficientMemory."""
    return Model.load(
        info.path,
        device=placement.device,
        n_gpu_layers=placement.n_gpu_layers,
        on_progress=on_progress,
        split=split_of(config, placement.group),
        loads_heads=info.loads_heads,
        is_mapped=placement.weights_in_main.is_mapped,
        may_repack=placement.weights_in_main.repacked > 0,
        gaps=info.gaps,
    )


def split_of(config: Configure, group: Group) -> Split | None:
    """Raises: ModelLoadFailed where the backend cannot split rows; the library's own words would name no way out."""
    device = group.devices[0]
    if config.split_mode == "none" or not group.is_gpu:
        return None
    if config.split_mode == "row" and not can_split_rows(device):
        raise ModelLoadFailed(
            f"--split-mode row: the {device.backend} backend of llama.cpp cannot split rows; use --split-mode layer"
        )
    return Split(config.split_mode, group.devices, group.shares)


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
