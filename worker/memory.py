"""How much memory a model needs, and how large a context fits: card × settings → plan.

Owns the arithmetic only; what is free is asked elsewhere (host.py, or the device), and after the load the measured
figures replace these. Weights are exact, KV cells are what llama.cpp allocates for a unified cache without sliding
windows, compute buffers are an estimate. Pure; runs in the engine before the load, and in `inspect`.
"""

from dataclasses import dataclass

from worker.card import ModelCard
from worker.errors import InsufficientMemory
from worker.ggml_types import TYPES_BY_NAME

DEFAULT_PARALLEL = 8
DEFAULT_MAX_CELLS = 16_384
CELL_STEP = 256
"""llama.cpp pads its context to a multiple of this (llama-context.cpp)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be asked of llama.cpp, and the memory that takes."""

    n_cells: int
    """KV cells shared by all jobs; llama.cpp's context is this rounded up to CELL_STEP."""
    parallel: int
    trained_length: int
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    """An estimate; see the two functions that make it."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    @property
    def context_length(self) -> int:
        """N of PROTOCOL.md 1: tokens one job may use."""
        return min(self.n_cells, self.trained_length)


def plan_memory(
    card: ModelCard,
    *,
    ctx_size: int,
    parallel: int,
    cache_type_k: str,
    cache_type_v: str,
    ubatch_size: int,
    has_flash_attention: bool,
    available_bytes: int,
) -> Plan:
    """The plan for a model in `available_bytes`. `ctx_size` and `parallel` of 0 mean "decide for me".

    An asked-for context is kept as it is, or refused. Otherwise as many cells as fit, in steps of CELL_STEP, up to
    parallel × trained length and DEFAULT_MAX_CELLS; where memory is what limits them and `parallel` is free, there
    are fewer slots, so that each can have CELL_STEP cells. Weights count in full, also when the file is mapped.

    Raises: InsufficientMemory: with what is needed, what is there and the largest context that would fit.
    """
    slots = parallel or DEFAULT_PARALLEL
    kv_bytes = kv_cell_bytes(card, cache_type_k, cache_type_v)
    scores_bytes = _scores_bytes(card, ubatch_size, has_flash_attention=has_flash_attention)
    activations_bytes = _activations_bytes(card, slots, ubatch_size)
    room = available_bytes - card.weights_bytes - activations_bytes
    fitting = max(0, room) // (CELL_STEP * (kv_bytes + scores_bytes)) * CELL_STEP
    wanted = ctx_size or _default_cells(card, slots)
    n_cells = ctx_size or min(wanted, fitting) or CELL_STEP
    plan = Plan(
        n_cells=n_cells,
        parallel=parallel or (slots if n_cells == wanted else min(slots, n_cells // CELL_STEP)),
        trained_length=card.context_length,
        weights_bytes=card.weights_bytes,
        kv_bytes=_padded(n_cells) * kv_bytes,
        compute_bytes=activations_bytes + _padded(n_cells) * scores_bytes,
    )
    if plan.total_bytes > available_bytes:
        raise _insufficient(plan, available_bytes, fitting)
    return plan


def prefix_cache_bytes(asked: int, plan: Plan, left_bytes: int) -> int:
    """Most bytes of main memory for ended jobs' KV cells; `left_bytes` is what the plan leaves of it.

    -1 means "decide for me": as much as the KV cache takes, at most half of what is left.
    Raises: InsufficientMemory for more than is left.
    """
    left_bytes = max(0, left_bytes)
    if asked < 0:
        return min(plan.kv_bytes, left_bytes // 2)
    if asked > left_bytes:
        raise InsufficientMemory(
            f"--prefix-cache-mb {asked // 2**20} is more main memory than the model leaves: "
            f"give at most {left_bytes // 2**20}, or leave it out",
            needed_bytes=asked,
            available_bytes=left_bytes,
        )
    return asked


def k_type(asked: str, *, is_on_gpu: bool, flash_attn: str) -> str:
    """The K cache's type for --cache-type-k: `auto` is llama.cpp's own f16, but bf16 on a CPU with flash attention.

    ggml's CPU attention has three ways to sum, chosen by the rows and cells of a whole step; with K and V of two types
    one of them is left, and a row's result no longer depends on its company. bf16 costs 0 to 5 % of a step, no memory,
    and on f16 weights a mean KL divergence of 6e-5. Source: ggml_compute_forward_flash_attn_ext_f16 (ggml-cpu/ops.cpp).
    """
    if asked != "auto":
        return asked
    return "f16" if is_on_gpu or flash_attn == "off" else "bf16"


def kv_cell_bytes(card: ModelCard, cache_type_k: str, cache_type_v: str) -> int:
    """Bytes of one KV cell over all layers: one token of one job."""
    type_k, type_v = TYPES_BY_NAME[cache_type_k.upper()], TYPES_BY_NAME[cache_type_v.upper()]
    return sum(
        type_k.n_bytes(n_heads * card.key_length) + type_v.n_bytes(n_heads * card.value_length)
        for n_heads in card.head_counts_kv
    )


def _default_cells(card: ModelCard, slots: int) -> int:
    return max(CELL_STEP, min(slots * card.context_length, DEFAULT_MAX_CELLS) // CELL_STEP * CELL_STEP)


def _padded(n_cells: int) -> int:
    return -(-n_cells // CELL_STEP) * CELL_STEP


def _activations_bytes(card: ModelCard, slots: int, ubatch_size: int) -> int:
    """An estimate: a row of float32 logits per slot, computed and kept, and eight rows of activations per token."""
    return 4 * (2 * card.vocab_size * slots + 8 * card.embedding_length * ubatch_size)


def _scores_bytes(card: ModelCard, ubatch_size: int, *, has_flash_attention: bool) -> int:
    """Per cell, an estimate: the mask of a micro-batch; without flash attention also a layer's scores, in float32."""
    if has_flash_attention:
        return 2 * ubatch_size
    return 4 * ubatch_size * (1 + max(card.head_counts, default=0))


def _insufficient(plan: Plan, available_bytes: int, fitting: int) -> InsufficientMemory:
    if fitting:
        advice = f"the largest --ctx-size that fits is {fitting}"
    else:
        advice = "no context fits: free memory, or choose a smaller model or --ubatch-size"
    return InsufficientMemory(
        f"not enough memory: {_mib(plan.total_bytes)} needed (weights {_mib(plan.weights_bytes)}, "
        f"KV cache of {plan.n_cells} cells {_mib(plan.kv_bytes)}, compute about {_mib(plan.compute_bytes)}), "
        f"{_mib(available_bytes)} available; {advice}",
        needed_bytes=plan.total_bytes,
        available_bytes=available_bytes,
    )


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"
