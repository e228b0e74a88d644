"""The conditions for sharing and caching prefixes, the bytes that the cache may take, and the reasons why there is
none.

Owns the reasons that `inspect`, `/health` and the log give. Pure; it reads the model info alone, so that `inspect` says
what `serve` will say.
"""

from dataclasses import dataclass

from worker.config.engine_settings import Configure
from worker.models.facts.info import ModelInfo
from worker.models.plan.memory import MAX_STRIDE, checkpoint_stride, has_checkpoints, has_state, prefix_cache_bytes
from worker.models.plan.placement import HOST_SHARE, Placement
from worker.models.upstream.architectures import ATTENTION_FREE, HYBRIDS_OF_SEVERAL_PARTS, OF_SEVERAL_PARTS
from worker.models.upstream.numbers import MAX_SEQ_IDS

MAX_SLOTS, MAX_SLOTS_OF_WINDOWS = MAX_SEQ_IDS - 1, MAX_SEQ_IDS // 2 - 1
"""The most slots that leave a sequence id for sharing (llama/seq_ids.py)."""

COPYING_IS_SLOW = (
    "on this device a prefix is computed again sooner than a copy of it is loaded from main memory; finished jobs' "
    "prefixes stay in the device's memory as far as there is room"
)


def obstacle(info: ModelInfo, *, swa_full: bool, parallel: int) -> str | None:
    """Return the reason why every prompt is computed from its start; None if cached prefixes are reused."""
    if info.architecture in (*OF_SEVERAL_PARTS, *HYBRIDS_OF_SEVERAL_PARTS):
        return f"{info.architecture} keeps an index for its KV cells, which cannot be cut"
    if has_state(info):
        if not has_checkpoints(info):
            return f"{info.architecture} has recurrent state beside sliding windows, which cannot be copied together"
        return None if info.architecture in ATTENTION_FREE else _too_many(parallel, MAX_SLOTS)
    if info.windows is None:
        return _too_many(parallel, MAX_SLOTS)
    if not swa_full:
        return (
            f"{info.windows.n_layers} of {info.block_count} layers keep only their sliding window of "
            f"{info.windows.length} tokens: use --swa-full on, and a smaller --ctx-size if memory is short"
        )
    return _too_many(parallel, MAX_SLOTS_OF_WINDOWS)


def prefix_cache_limit(config: Configure, placement: Placement, available_bytes: int) -> int:
    """Return how many bytes finished jobs' cells may take, of the `available_bytes` of main memory before the load.

    Raises: InsufficientMemory for more than the placement leaves. A successor's limit was checked, as its plan was.
    """
    if config.predecessor is not None:
        return config.predecessor.prefix_cache_bytes
    left_bytes = int(available_bytes * HOST_SHARE) - placement.main_memory.total_bytes
    return prefix_cache_bytes(config.prefix_cache_bytes, placement.plan, placement.need, left_bytes)


@dataclass(frozen=True, slots=True)
class Kept:
    """The bytes that finished jobs' cells may take; if there are none, the reason. And what a copy of a recurrent state
    takes, and how many tokens lie between two; 0 where there are none.
    """

    limit_bytes: int
    off_because: str | None = None
    checkpoint_bytes: int = 0
    checkpoint_stride: int = 0


def kept_of(
    info: ModelInfo,
    placement: Placement,
    limit_bytes: int,
    *,
    can_share: bool,
    state_bytes: int = 0,
    is_copying_worthwhile: bool = True,
) -> Kept:
    """The limit and why it is 0. What the context says counts; the model info knows the words."""
    plan = placement.plan
    if not can_share:
        why = obstacle(info, swa_full=plan.swa_full, parallel=plan.parallel)
        return Kept(0, why or f"llama.cpp's memory for {info.architecture} cannot be cut")
    if limit_bytes and not is_copying_worthwhile:
        return Kept(0, COPYING_IS_SLOW)
    why_off = None if limit_bytes else "--prefix-cache-mb is 0, or the model leaves no main memory for it"
    stride = checkpoint_stride(plan, placement.need) or MAX_STRIDE
    return Kept(limit_bytes, why_off, state_bytes, stride if state_bytes else 0)


def _too_many(parallel: int, most: int) -> str | None:
    if parallel <= most:
        return None
    return f"--parallel {parallel} leaves no sequence id for sharing; use at most {most}"
