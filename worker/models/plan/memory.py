"""The sizes of a context: how many cells and jobs it has, and what the library would take for it.

Owns the choice of these numbers where none were asked for. What they take is not computed here: llama.cpp's dry run
says it (`Need`), which simulates all allocations of a load (models/loading/places.py). Pure.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory
from worker.limits import max_jobs
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.upstream.architectures import ATTENTION_FREE, HYBRIDS, HYBRIDS_OF_SEVERAL_PARTS
from worker.models.upstream.numbers import CELL_STEP

DEFAULT_PARALLEL = 8
MIN_WANTED_CELLS = 16_384
"""A model with a shorter trained length has several jobs' worth of cells, where memory allows it."""
KV_SHARE = 4
"""The default number of cells takes at most this part of the free memory: it must leave room for other programs, and
for the cells of finished jobs."""

CELLS_SEQ_IDS = 2
"""The sequence ids for cells that are being copied and for forgotten ones (llama/kv.py)."""
RETAINED_ON_GPU, RETAINED_ON_CPU = 16, 8
"""The number of finished jobs that keep their cells in a GPU's memory; and of those whose cells wait on a CPU to be
copied out, or that end while a prompt is read (engine/prefix_cache.py)."""


def retained_slots(*, is_on_gpu: bool) -> int:
    return RETAINED_ON_GPU if is_on_gpu else RETAINED_ON_CPU


MIN_STRIDE, MAX_STRIDE = 256, 8192
CHECKPOINTS_PER_SLOT = 4
"""The number of recurrent states for which the prefix cache has room beside cells, for each slot, if nothing else was
asked for: a conversation keeps the last three (engine/caches.py)."""

MAX_PADDING = 3
"""The rows of a decode step that are not read, and their cells, if a step may be filled up (llama/batch.py)."""

DETERMINISTIC_CHUNK = 64
"""The tokens of a prompt's chunk when chunks are fixed. The number is the same on every machine, however long a step
takes there (docs/determinism.md)."""

HEAD_BATCH = 256
"""The tokens of the widest step of a next-token head, which reads a job's last tokens (llama/heads.py)."""

DEFAULT_UBATCH = 512
WIDER_UBATCHES = (2048, 1024)
"""The sizes of a micro-batch that are tried on a GPU where none was asked for, if the plan has room for them: a prompt
of 534 tokens is computed in one step then, and a GPU computes more of them in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    n_cells: int
    """KV cells shared by all jobs; llama.cpp's context is this, and the padding's, rounded up to CELL_STEP."""
    parallel: int
    trained_length: int
    swa_full: bool = True
    """True if layers with a sliding window have as many cells as others."""
    n_padding_cells: int = 0
    """Cells beyond those of jobs, for rows that fill a decode step up (llama/batch.py)."""
    n_chunk_rows: int = 0
    """Rows of logits that a prompt's chunk needs where its log-probabilities are wanted and it cannot be made smaller;
    0: those that drafts have elsewhere are enough."""
    ubatch_size: int = DEFAULT_UBATCH
    n_snapshots: int = 0
    """The earlier recurrent states that each sequence id has beside its last one (models/plan/abilities.py)."""

    @property
    def context_length(self) -> int:
        """N of docs/protocol.md#command-line: tokens one job may use."""
        return min(self.n_cells, self.trained_length)

    @property
    def n_padded_cells(self) -> int:
        return -(-(self.n_cells + self.n_padding_cells) // CELL_STEP) * CELL_STEP


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that the library needs for a model with a plan, as its dry run says."""

    buffers: BufferSizes
    """They are of the kinds model, KV, RS (recurrent states), compute, output and rows, as in its log."""
    checkpoint_bytes: int = 0
    """A copy of one sequence's recurrent state; 0 where there is none, or where none can be kept."""

    @property
    def kv_bytes(self) -> int:
        """The cells, with the states of recurrent layers."""
        return self.buffers.of_kind("KV") + self.buffers.of_kind("RS")


def snapshot_bytes(plan: Plan, need: Need) -> int:
    """Return the part of the states that can be taken back."""
    return need.buffers.of_kind("RS") * plan.n_snapshots // (1 + plan.n_snapshots)


def checkpoint_stride(plan: Plan, need: Need) -> int:
    """Return the distance of checkpoints within a long prompt: a power of two by which the states take no more room
    than the cells between them, if it can be that; 0 where there are none.
    """
    if not need.checkpoint_bytes:
        return 0
    cell_bytes = max(1, need.buffers.of_kind("KV") // plan.n_padded_cells)
    stride = MIN_STRIDE
    while stride < MAX_STRIDE and need.checkpoint_bytes > stride * cell_bytes:
        stride *= 2
    return stride


def plan_of(config: Configure, info: ModelInfo, n_cells: int) -> Plan:
    """The plan for exactly `n_cells` cells; `--swa-full auto` counts as `on`.

    Where memory is what limits the cells and `parallel` is free, there are fewer slots, so that each can have CELL_STEP
    cells.
    """
    # The number that was asked for; else the default, or as many as an asked-for context can have.
    slots = _slots(config)
    is_scarce = not config.ctx_size and n_cells < most_useful_cells(config, info)
    ubatch_size = config.ubatch_size or DEFAULT_UBATCH
    return Plan(
        n_cells=n_cells,
        parallel=config.parallel or (min(slots, n_cells // CELL_STEP) if is_scarce else slots),
        trained_length=info.context_length,
        swa_full=config.swa_full != "off",
        n_padding_cells=MAX_PADDING if config.deterministic else 0,
        n_chunk_rows=min(DETERMINISTIC_CHUNK, ubatch_size) if config.deterministic else 0,
        ubatch_size=ubatch_size,
    )


def most_useful_cells(config: Configure, info: ModelInfo) -> int:
    """The number of cells that was asked for; else, if memory is no limit, a job's longest context, or MIN_WANTED_CELLS
    if that is more.
    """
    if config.ctx_size:
        return config.ctx_size
    most = min(_slots(config) * info.context_length, max(info.context_length, MIN_WANTED_CELLS))
    return max(CELL_STEP, most // CELL_STEP * CELL_STEP)


def largest(most: int, suits: Callable[[int], bool], *, step: int = CELL_STEP) -> int:
    """The largest number that suits: `most`, or a multiple of `step` below it; 0 where none does. What suits, suits if
    smaller.
    """
    if suits(most):
        return most
    below = range(step, most, step)
    return step * bisect_left(below, True, key=lambda number: not suits(number))


def _slots(config: Configure) -> int:
    most = max_jobs(config.ctx_size) if config.ctx_size else DEFAULT_PARALLEL
    return config.parallel or min(DEFAULT_PARALLEL, most)


def prefix_cache_bytes(asked: int, plan: Plan, need: Need, left_bytes: int) -> int:
    """The most bytes of main memory for finished jobs' KV cells; `left_bytes` is what the plan leaves of it.

    With -1 it is as much as the KV cache takes, and some recurrent states for each slot, at most half of what is left.
    Raises: InsufficientMemory for more than is left.
    """
    left_bytes = max(0, left_bytes)
    if asked < 0:
        kept_bytes = need.kv_bytes - snapshot_bytes(plan, need)
        return min(kept_bytes + CHECKPOINTS_PER_SLOT * plan.parallel * need.checkpoint_bytes, left_bytes // 2)
    if asked > left_bytes:
        raise InsufficientMemory(
            f"--prefix-cache-mb {asked // 2**20} is more than the {left_bytes // 2**20} MiB of main memory that the "
            f"model leaves: give at most {left_bytes // 2**20}, or remove the flag",
            needed_bytes=asked,
            available_bytes=left_bytes,
        )
    return asked


def k_type(asked: str, *, needs_one_order: bool = False) -> str:
    """The K cache's type for --cache-type-k: `auto` is f16, llama.cpp's own, or bf16 where sums need one order.

    ggml's own CPU attention has three ways to sum, chosen by the rows and cells of a whole step; with K and V of two
    types one of them is left, and a row's result no longer depends on others. bf16 costs a prompt 12 to 26 %, no
    memory, and on f16 weights a mean KL divergence of 6e-5. Source: ggml_compute_forward_flash_attn_ext_f16
    (ggml-cpu/ops.cpp).
    """
    if asked != "auto":
        return asked
    return "bf16" if needs_one_order else "f16"


def has_state(info: ModelInfo) -> bool:
    """Return whether a sequence has a recurrent state, beside its cells or instead of them."""
    return info.architecture in (*ATTENTION_FREE, *HYBRIDS)


def has_checkpoints(info: ModelInfo) -> bool:
    """Return whether copies of that state can be kept: not if windows would have to be copied with it, nor an index."""
    return has_state(info) and info.windows is None and info.architecture not in HYBRIDS_OF_SEVERAL_PARTS
