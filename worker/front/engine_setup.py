"""How an engine process starts: the settings it needs, the environment it may see, and how its refusal reads."""

from pathlib import Path
from typing import cast

from worker.config.gpu_flags import shares
from worker.config.settings import Settings, environment
from worker.errors import InsufficientMemory, ModelLoadFailed, StartupError
from worker.wire.messages import Configure, LoadFailed, SwaFull
from worker.wire.offload import SplitMode

SPIN_COUNT = "30000"
"""Of libgomp; docs/performance.md has what other counts cost."""


def configure(settings: Settings, model_path: Path) -> Configure:
    """The engine's first frame. Absolute path: the engine need not share the working directory."""
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
        prefix_cache_bytes=settings.prefix_cache_bytes,
        has_prompt_lookup=settings.prompt_lookup == "on",
        swa_full=cast(SwaFull, settings.swa_full),  # check() lets no other pass
        split_mode=cast(SplitMode, settings.split_mode),  # check() lets no other pass
        tensor_split=shares(settings.tensor_split),
        main_gpu=-1 if settings.main_gpu is None else settings.main_gpu,
    )


def engine_environment() -> dict[str, str]:
    """Ours without the secret; on an abort the library would otherwise start a debugger for its backtrace.

    Threads that meet spin for some microseconds, then they sleep (libgomp's own count is 300,000): on an idle machine
    it makes no difference, and beside other processes theirs need the processor. Whoever has set how to wait is obeyed.
    One arena of glibc's malloc: what the intake thread's leaves free the step thread uses (tests/test_hostile_jobs.py
    grew the engine by 81 MiB with two, by 51 with one).
    """
    kept = {name: value for name, value in environment().items() if name != "LLORCH_API_TOKEN"}
    waiting = {} if "OMP_WAIT_POLICY" in kept or "GOMP_SPINCOUNT" in kept else {"GOMP_SPINCOUNT": SPIN_COUNT}
    return {"MALLOC_ARENA_MAX": "1"} | kept | waiting | {"GGML_NO_BACKTRACE": "1"}


def load_error(failed: LoadFailed) -> StartupError:
    """The engine's reason for not loading, as the front raises it."""
    if failed.needed_bytes is not None and failed.available_bytes is not None:
        return InsufficientMemory(
            failed.message,
            needed_bytes=failed.needed_bytes,
            available_bytes=failed.available_bytes,
            device=failed.device,
        )
    return ModelLoadFailed(failed.message)
