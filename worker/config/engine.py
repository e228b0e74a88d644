"""Settings as the engine's first frame: what it is asked to load, and how it is to serve. Pure."""

from pathlib import Path

from msgspec.structs import replace

from worker.config.gpu_flags import shares, wants_no_layers
from worker.config.settings import Settings
from worker.wire.load import Configure, DraftModelAsked, Loaded


def configure(
    settings: Settings,
    model_path: Path,
    chat_template: str | None = None,
    draft_path: Path | None = None,
    *,
    arena_fd: int = -1,
) -> Configure:
    """The engine's first frame. Paths are absolute, because the engine need not share the working directory.

    `chat_template` is what read_chat_template found; `arena_fd` is memory that each engine inherits.
    """
    kept_in = settings.prefix_cache_dir
    return Configure(
        model_path=str(model_path.absolute()),
        device=settings.device_or_auto,
        gpu_layers=settings.gpu_layers,
        require_full_offload=settings.require_full_offload,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        batch_size=settings.batch_size,
        ubatch_size=settings.ubatch_size,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        flash_attn=settings.flash_attn,
        max_tokens_in=settings.max_tokens_in,
        itl_target_ms=settings.itl_target_ms,
        is_deterministic=settings.deterministic,
        batch_invariant=settings.batch_invariant,
        kernels=settings.kernels,
        kernels_dir=str((settings.models_dir / ".kernels").absolute()),
        may_repack=not settings.no_repack,
        prefix_cache_bytes=settings.prefix_cache_bytes,
        scheduling=settings.scheduling,
        prompt_lookup=settings.prompt_lookup,
        mtp=settings.mtp,
        draft=None if draft_path is None else _draft(settings, draft_path),
        swa_full=settings.swa_full,
        split_mode=settings.split_mode,
        tensor_split=shares(settings.tensor_split),
        main_gpu=-1 if settings.main_gpu is None else settings.main_gpu,
        chat_template=chat_template,
        chat_template_kwargs=settings.chat_template_kwargs,
        reports_blocks=settings.kv_events is not None,
        arena_fd=arena_fd,
        prefix_cache_dir=None if kept_in is None else str(kept_in.absolute()),
        wants_numerics=settings.parity_report is not None,
    )


def _draft(settings: Settings, path: Path) -> DraftModelAsked:
    """A draft model without a device of its own goes where the model may go."""
    own = "cpu" if wants_no_layers(settings.gpu_layers) else settings.device_or_auto
    return DraftModelAsked(str(path.absolute()), settings.draft_device or own, settings.draft_max)


def successor_of(config: Configure, facts: Loaded) -> Configure:
    """Return the configuration of the next engine, after one with this configuration was loaded.

    It gets the same shape, whatever memory is free by then, so that accepted jobs still fit; and the costs of steps,
    which take up to a second to measure.
    """
    return replace(
        config,
        is_successor=True,
        ctx_size=facts.n_cells,
        parallel=facts.parallel,
        prefill_chunk=facts.prefill_chunk,
        row_costs=facts.row_costs,
        switch_s=facts.switch_s,
        padded_widths=facts.padded_widths,
        kernels_found=facts.kernels,
        n_snapshots=facts.drafts.snapshots,
        ubatch_size=facts.ubatch_size,
        prefix_cache_bytes=facts.prefix_cache_bytes,
        swa_full="off" if facts.swa_full is False else "on",
        device=f"{facts.backend}:{facts.device_index}",
        gpu_layers=str(facts.offload.gpu_layers),
        tensor_split=facts.offload.tensor_split,
        main_gpu=-1,
        draft=_placed(config.draft, facts),
    )


def _placed(asked: DraftModelAsked | None, facts: Loaded) -> DraftModelAsked | None:
    """Return what to ask of a successor: the draft model on the device where its predecessor had it."""
    if asked is None or facts.draft is None:
        return asked
    return replace(asked, device=facts.draft.device, n_cells=facts.draft_cells)
