"""The memory that a model needs, and the largest context that fits: model info × settings → plan.

Owns the arithmetic only: the caller says what is free and where, and after the load the measured figures are compared
with these. Weights are spread.py's. KV cells are what llama.cpp allocates for unified caches, with full-size sliding
windows or without, and its states of recurrent layers. The compute buffers (masks, activations and logits of the
largest step) are estimates that follow the graph llama.cpp reserves when a context is made
(llama_context::sched_reserve); tests compare them with the library. Pure; runs in the engine before the load, and in
`inspect`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory
from worker.limits import MAX_DRAFTS, MAX_HIDDEN_ROWS, max_jobs
from worker.model.attention import Beside
from worker.model.info import ModelInfo
from worker.upstream.architectures import (
    ATTENTION_FREE,
    CELLS_BY_SEQUENCE,
    HYBRIDS,
    HYBRIDS_OF_SEVERAL_PARTS,
    INDEXED_RATIO,
    ROWS_OF_OUTPUTS_ALONE,
)
from worker.upstream.ggml_types import TYPES_BY_NAME
from worker.upstream.numbers import CELL_STEP, MAX_SEQ_IDS

DEFAULT_PARALLEL = 8
MIN_WANTED_CELLS = 16_384
"""A model with a shorter trained length has several jobs' worth of cells, where memory allows it."""
KV_SHARE = 4
"""The default number of cells takes at most this part of the free memory: it must leave room for other programs, and
for the cells of finished jobs."""

CELLS_SEQ_IDS = 2
"""The sequence ids for cells that are being copied and for forgotten ones (llama/kv.py)."""
RETAINED_ON_GPU = 16
"""The number of finished jobs that keep their cells in a GPU's memory."""
RETAINED_ON_CPU = 8
"""The number of finished jobs whose cells wait to be copied out, and of those that end while a prompt is read
(engine/prefix_cache.py)."""


def retained_slots(*, is_on_gpu: bool) -> int:
    """The number of sequence ids for cells of finished jobs."""
    return RETAINED_ON_GPU if is_on_gpu else RETAINED_ON_CPU


MIN_STRIDE, MAX_STRIDE = 256, 8192
CHECKPOINTS_PER_SLOT = 4
"""The number of recurrent states for which the prefix cache has room beside cells, for each slot, if nothing else was
asked for: a conversation keeps the last three (engine/state_cache.py)."""

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

_FLOAT_BYTES, _HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The settings that demand memory. 0 in the first two means that the plan decides."""

    ctx_size: int
    """Cells."""
    parallel: int
    cache_type_k: str
    cache_type_v: str
    ubatch_size: int
    has_flash_attention: bool
    swa_full: bool = True
    """Layers with a sliding window have as many cells as others."""
    n_padding_cells: int = 0
    """Cells beyond those of jobs, for rows that fill a decode step up (llama/batch.py)."""
    n_chunk_rows: int = 0
    """Rows of logits that a prompt's chunk needs where its log-probabilities are wanted and it cannot be made smaller;
    0: those that drafts have elsewhere are enough."""
    free_bytes: int | None = None
    """The memory that is free where the cells go, of which the default number takes a part; None: no limit."""
    n_retained: int = 1
    """Sequence ids for cells of finished jobs."""
    n_snapshots: int = 0
    """The number of Plan.n_snapshots."""
    batch_size: int = 0
    """The tokens of a batch, of each of which a next-token head may want a hidden row."""


def demand_of(config: Configure, *, is_on_gpu: bool, free_bytes: int | None = None) -> Demand:
    """The memory demand of a configuration; `--swa-full auto` counts as `on`. `free_bytes` is Demand's."""
    return Demand(
        ctx_size=config.ctx_size,
        parallel=config.parallel,
        # f16 and bf16 are of one size.
        cache_type_k=k_type(config.cache_type_k),
        cache_type_v=config.cache_type_v,
        ubatch_size=config.ubatch_size or DEFAULT_UBATCH,
        has_flash_attention=config.flash_attn != "off",
        swa_full=config.swa_full != "off",
        n_padding_cells=MAX_PADDING if config.deterministic else 0,
        n_chunk_rows=min(DETERMINISTIC_CHUNK, config.ubatch_size or DEFAULT_UBATCH) if config.deterministic else 0,
        free_bytes=free_bytes,
        n_retained=retained_slots(is_on_gpu=is_on_gpu),
        batch_size=config.batch_size,
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes that llama.cpp will be asked for, and the memory that they take without weights when all of it is in
    one place.
    """

    n_cells: int
    """KV cells shared by all jobs; llama.cpp's context is this, and the padding's, rounded up to CELL_STEP."""
    parallel: int
    trained_length: int
    kv_bytes: int
    """The KV cache, with the states of recurrent layers."""
    compute_bytes: int
    """An estimate."""
    output_bytes: int
    """The rows of logits that are kept to be read."""
    n_window_cells: int = 0
    """The cells of layers with a sliding window; 0 where there are none."""
    n_seq_ids: int = 0
    """Sequence ids of the slots, and those that are needed beside them."""
    swa_full: bool = True
    """True if layers with a sliding window have as many cells as others."""
    n_padding_cells: int = 0
    n_chunk_rows: int = 0
    n_retained: int = 1
    ubatch_size: int = DEFAULT_UBATCH
    """The tokens of a micro-batch."""
    checkpoint_bytes: int = 0
    """A copy of one sequence's recurrent state; 0 where there is none."""
    checkpoint_stride: int = 0
    """The distance in tokens at which copies are kept of a long prompt; 0 where none can be."""
    n_snapshots: int = 0
    """The earlier recurrent states that each sequence id has beside its last one (plan/snapshots.py)."""

    @property
    def snapshot_bytes(self) -> int:
        return self.n_snapshots * self.n_seq_ids * self.checkpoint_bytes

    @property
    def context_length(self) -> int:
        """N of docs/protocol.md#command-line: tokens one job may use."""
        return min(self.n_cells, self.trained_length)

    @property
    def n_padded_cells(self) -> int:
        return -(-(self.n_cells + self.n_padding_cells) // CELL_STEP) * CELL_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The shape of the largest step."""

    n_cells: int
    """The cells of the whole KV cache, as llama.cpp pads it."""
    n_window_cells: int
    """The cells of the cache for layers with a sliding window; 0 where there are none."""
    n_tokens: int
    """The tokens of a micro-batch, rounded up to as many for each sequence."""
    n_outputs: int
    """Rows of logits."""
    has_flash_attention: bool
    n_snapshots: int = 0
    """The earlier states of all sequences that a recurrent layer gives with its last ones."""


Fits = Callable[[Plan], bool]
"""A check that there is room for a plan. If there is, there is room for one with fewer cells too."""


def plan_memory(info: ModelInfo, demand: Demand, fits: Fits, *, min_cells: int = CELL_STEP) -> Plan | None:
    """The plan for a model where `fits` says what there is room for; None where there is too little.

    An asked-for context is kept as it is. Otherwise as many cells as fit, in steps of CELL_STEP, up to those that are
    wanted, and not fewer than `min_cells` of them; where memory is what limits them and `parallel` is free, there are
    fewer slots, so that each can have CELL_STEP cells.
    """
    wanted = wanted_cells(info, demand)
    if demand.ctx_size:
        plan = plan_of(info, demand, wanted)
        return plan if fits(plan) else None
    n_cells = max_cells(info, demand, fits)
    return plan_of(info, demand, n_cells) if n_cells >= min(min_cells, wanted) else None


def wanted_cells(info: ModelInfo, demand: Demand) -> int:
    """The number of cells of a model if the whole plan fits: the number that was asked for; else a job's longest
    context, or MIN_WANTED_CELLS if that is more, within 1 / KV_SHARE of the free memory.
    """
    most = demand.ctx_size or _most_useful_cells(info, demand)
    if demand.ctx_size or demand.free_bytes is None:
        return most
    limit_bytes = demand.free_bytes // KV_SHARE
    return max(CELL_STEP, _largest(most, lambda n_cells: _cells_of(info, demand, n_cells).kv_bytes <= limit_bytes))


def max_cells(info: ModelInfo, demand: Demand, fits: Fits) -> int:
    """The largest multiple of CELL_STEP that fits, at most the wanted cells; 0 where none does."""
    return _largest(wanted_cells(info, demand), lambda n_cells: fits(plan_of(info, demand, n_cells)))


def plan_of(info: ModelInfo, demand: Demand, n_cells: int) -> Plan:
    """The plan for exactly `n_cells` cells."""
    bare = _cells_of(info, demand, n_cells)
    return replace(
        bare,
        compute_bytes=graph_bytes(info, planned_graph(demand, bare)) + head_graph_bytes(info, demand, bare),
        output_bytes=logits_bytes(info, _n_outputs(bare)) + _head_rows_bytes(info, demand, bare),
    )


def _cells_of(info: ModelInfo, demand: Demand, n_cells: int) -> Plan:
    """The plan for exactly `n_cells` cells, of which only the bytes of these are known."""
    slots = _slots(demand)
    is_scarce = not demand.ctx_size and n_cells < _most_useful_cells(info, demand)
    parallel = demand.parallel or (min(slots, n_cells // CELL_STEP) if is_scarce else slots)
    bare = Plan(n_cells, parallel, info.context_length, 0, 0, 0, swa_full=demand.swa_full)
    bare = replace(
        bare,
        n_padding_cells=demand.n_padding_cells,
        n_chunk_rows=demand.n_chunk_rows,
        n_retained=0 if has_state(info) else demand.n_retained,
        ubatch_size=demand.ubatch_size,
        checkpoint_bytes=sum(state_layer_bytes(info)),
        n_snapshots=demand.n_snapshots,
        checkpoint_stride=checkpoint_stride(info, demand) if has_checkpoints(info) else 0,
    )
    bare = replace(bare, n_window_cells=_n_window_cells(info, demand, bare), n_seq_ids=_n_seq_ids(info, demand, bare))
    return replace(bare, kv_bytes=sum(layer_memory_bytes(info, demand, bare)))


def _most_useful_cells(info: ModelInfo, demand: Demand) -> int:
    """The number of cells of a model if memory is no limit and no number was asked for."""
    most = min(_slots(demand) * info.context_length, max(info.context_length, MIN_WANTED_CELLS))
    return max(CELL_STEP, most // CELL_STEP * CELL_STEP)


def _largest(most: int, suits: Callable[[int], bool]) -> int:
    """The largest multiple of CELL_STEP that suits, at most `most`; 0 where none does. What suits, suits if smaller."""
    fitting, failing = 0, most // CELL_STEP + 1
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if suits(middle * CELL_STEP):
            fitting = middle
        else:
            failing = middle
    return fitting * CELL_STEP


def planned_graph(demand: Demand, plan: Plan) -> Graph:
    """The largest step of a plan's slots; a slot draws once a step, and once for each draft token. Log-probabilities of
    prompts take the rows of drafts, or those of a fixed chunk.
    """
    graph = graph_of(
        plan.n_padded_cells,
        n_window_cells=plan.n_window_cells,
        n_seqs=plan.n_seq_ids,
        n_most_outputs=_n_outputs(plan),
        ubatch_size=demand.ubatch_size,
        has_flash_attention=demand.has_flash_attention,
    )
    return replace(graph, n_snapshots=plan.n_snapshots * plan.n_seq_ids)


def head_graph_bytes(info: ModelInfo, demand: Demand, plan: Plan) -> int:
    """Return what a next-token head computes with; 0 without one. Its context has the jobs' slots alone."""
    if not info.loads_heads:
        return 0
    n_outputs = plan.parallel + MAX_DRAFTS
    graph = graph_of(
        plan.n_padded_cells,
        n_window_cells=0,
        n_seqs=plan.parallel,
        n_most_outputs=n_outputs,
        ubatch_size=max(HEAD_BATCH, n_outputs),
        has_flash_attention=demand.has_flash_attention,
    )
    return graph_bytes(info, graph)


def _head_rows_bytes(info: ModelInfo, demand: Demand, plan: Plan) -> int:
    """Return what main memory holds for a next-token head: its logits, its own rows, those of the model's batch, and
    those that are kept of each job; 0 without one.
    """
    if not info.loads_heads:
        return 0
    n_outputs = plan.parallel + MAX_DRAFTS
    is_of_outputs = info.architecture in ROWS_OF_OUTPUTS_ALONE
    n_of_batch = _n_outputs(plan) if is_of_outputs else max(demand.batch_size, _n_outputs(plan))
    n_rows = n_outputs + n_of_batch + plan.parallel * MAX_HIDDEN_ROWS
    return logits_bytes(info, n_outputs) + n_rows * info.embedding_length * _FLOAT_BYTES


def _slots(demand: Demand) -> int:
    """Return the number of slots that was asked for; else the default, or as many as an asked-for context can have."""
    most = max_jobs(demand.ctx_size) if demand.ctx_size else DEFAULT_PARALLEL
    return demand.parallel or min(DEFAULT_PARALLEL, most)


def _n_outputs(plan: Plan) -> int:
    return max(plan.parallel + plan.n_retained + MAX_DRAFTS, plan.n_seq_ids, plan.n_chunk_rows)


def _n_window_cells(info: ModelInfo, demand: Demand, plan: Plan) -> int:
    """Source: llama_kv_cache_iswa."""
    if info.windows is None or demand.swa_full:
        return plan.n_padded_cells if info.windows else 0
    n_needed = info.windows.length * plan.parallel + demand.ubatch_size
    return -(-min(plan.n_padded_cells, n_needed) // CELL_STEP) * CELL_STEP


def _n_seq_ids(info: ModelInfo, demand: Demand, plan: Plan) -> int:
    """Return how many sequence ids llama/seq_ids.py gives out."""
    n_own = plan.parallel + plan.n_retained + CELLS_SEQ_IDS + (plan.n_padding_cells > 0)
    if has_state(info) and (info.architecture in ATTENTION_FREE or not has_checkpoints(info)):
        return min(n_own - CELLS_SEQ_IDS, MAX_SEQ_IDS)
    if info.windows is None:
        return min(n_own, MAX_SEQ_IDS)
    return min(2 * n_own, MAX_SEQ_IDS) if demand.swa_full else plan.parallel


def prefix_cache_bytes(asked: int, plan: Plan, left_bytes: int) -> int:
    """The most bytes of main memory for finished jobs' KV cells; `left_bytes` is what the plan leaves of it.

    With -1 it is as much as the KV cache takes, and some recurrent states for each slot, at most half of what is left.
    Raises: InsufficientMemory for more than is left.
    """
    left_bytes = max(0, left_bytes)
    if asked < 0:
        n_states = CHECKPOINTS_PER_SLOT * plan.parallel if plan.checkpoint_stride else 0
        kept_bytes = plan.kv_bytes - plan.snapshot_bytes + n_states * plan.checkpoint_bytes
        return min(kept_bytes, left_bytes // 2)
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


def layer_memory_bytes(info: ModelInfo, demand: Demand, plan: Plan) -> tuple[int, ...]:
    """The bytes of each layer: its KV cells, and the recurrent states of each sequence id."""
    cells = kv_layer_bytes(info, demand.cache_type_k, demand.cache_type_v)
    if info.architecture in CELLS_BY_SEQUENCE:
        return compressed_layer_bytes(info, demand, plan)
    return tuple(
        (plan.n_window_cells if has_window else plan.n_padded_cells) * cell
        + plan.n_seq_ids * (1 + plan.n_snapshots) * state
        for cell, state, has_window in zip(cells, state_layer_bytes(info), _in_layer(info), strict=True)
    )


def compressed_layer_bytes(info: ModelInfo, demand: Demand, plan: Plan) -> tuple[int, ...]:
    """The same where each sequence has all cells, in some layers compressed ones beside them, and what it needs to make
    these. Source: llama_kv_cache_dsv4.
    """
    type_k = TYPES_BY_NAME[demand.cache_type_k.upper()]

    def bytes_of(beside: Beside) -> int:
        n_bytes, ratio = plan.n_padded_cells * type_k.n_bytes(info.key_length), beside.compress_ratio
        if not ratio:
            return n_bytes
        has_index = ratio == INDEXED_RATIO
        lengths = [info.key_length, beside.key_length] if has_index else [info.key_length]
        n_cells = -(-max(1, plan.n_padded_cells // ratio) // CELL_STEP) * CELL_STEP
        n_kept = 2 * ratio * 2 if has_index else ratio
        return n_bytes + sum(n_cells * type_k.n_bytes(n) + 2 * _FLOAT_BYTES * n_kept * n for n in lengths)

    return tuple(plan.n_seq_ids * bytes_of(beside) for beside in info.beside_heads)


def has_state(info: ModelInfo) -> bool:
    """Return whether a sequence has a recurrent state, beside its cells or instead of them."""
    return info.architecture in (*ATTENTION_FREE, *HYBRIDS)


def has_checkpoints(info: ModelInfo) -> bool:
    """Return whether copies of that state can be kept: not if windows would have to be copied with it, nor an index."""
    return has_state(info) and info.windows is None and info.architecture not in HYBRIDS_OF_SEVERAL_PARTS


def state_layer_bytes(info: ModelInfo) -> tuple[int, ...]:
    """Bytes of one sequence's recurrent state in each layer."""
    if not has_state(info):
        return (0,) * len(info.head_counts_kv)
    with_state = info.state_layers
    return tuple(_FLOAT_BYTES * info.state_length * (layer in with_state) for layer in range(info.block_count))


def checkpoint_stride(info: ModelInfo, demand: Demand) -> int:
    """Return the distance of checkpoints within a long prompt: a power of two by which the states take no more room
    than the cells between them, if it can be that.
    """
    cell_bytes = max(1, sum(kv_layer_bytes(info, demand.cache_type_k, demand.cache_type_v)))
    state_bytes, stride = sum(state_layer_bytes(info)), MIN_STRIDE
    while stride < MAX_STRIDE and state_bytes > stride * cell_bytes:
        stride *= 2
    return stride


def kv_layer_bytes(info: ModelInfo, cache_type_k: str, cache_type_v: str) -> tuple[int, ...]:
    """Bytes of one KV cell in each layer."""
    type_k, type_v = TYPES_BY_NAME[cache_type_k.upper()], TYPES_BY_NAME[cache_type_v.upper()]

    def cell_bytes(layer: int, n_heads: int) -> int:
        if layer >= info.n_layers_with_cells:
            return 0
        of = info.windows if info.windows and info.windows.in_layer[layer] else info
        beside = info.beside_heads[layer] if info.beside_heads else Beside()
        n_keys, n_values = n_heads * of.key_length, n_heads * of.value_length
        return type_k.n_bytes(n_keys + beside.key_length) + type_v.n_bytes(n_values + beside.value_length)

    return tuple(cell_bytes(layer, n_heads) for layer, n_heads in enumerate(info.head_counts_kv))


def _in_layer(info: ModelInfo) -> tuple[bool, ...]:
    return info.windows.in_layer if info.windows else (False,) * len(info.head_counts_kv)


def graph_of(
    n_cells: int,
    *,
    n_window_cells: int,
    n_seqs: int,
    n_most_outputs: int,
    ubatch_size: int,
    has_flash_attention: bool,
) -> Graph:
    """The step that llama.cpp reserves for: a full micro-batch of all sequences."""
    n_tokens = min(ubatch_size, n_cells)
    return Graph(
        n_cells=n_cells,
        n_window_cells=n_window_cells,
        n_tokens=-(-n_tokens // n_seqs) * n_seqs,
        n_outputs=max(n_seqs, min(n_tokens, n_most_outputs)),
        has_flash_attention=has_flash_attention,
    )


def graph_bytes(info: ModelInfo, graph: Graph) -> int:
    """Return what the computing device needs: a layer with its masks, or the last one's logits if they are more; and
    the states that a recurrent layer gives.
    """
    last = logits_bytes(info, graph.n_outputs) + _rows_bytes(graph, info.embedding_length)
    states = graph.n_snapshots * max(state_layer_bytes(info), default=0)
    return max(_attention_bytes(info, graph), _feed_forward_bytes(info, graph), last) + states


def graph_input_bytes(info: ModelInfo, graph: Graph) -> int:
    """Return what main memory holds ready for a computing GPU: embedded tokens and their mask."""
    return _mask_bytes(info, graph) + _rows_bytes(graph, 2 * info.embedding_length)


def logits_bytes(info: ModelInfo, n_rows: int) -> int:
    return n_rows * info.vocab_size * _FLOAT_BYTES


def _attention_bytes(info: ModelInfo, graph: Graph) -> int:
    """Return the bytes of attention. A layer's scores are written out without flash attention, in float32 as their
    mask.
    """
    n_heads, n_heads_kv = max(info.head_counts, default=0), max(info.head_counts_kv, default=0)
    cached = n_heads_kv * (info.key_length + info.value_length)
    rows = _rows_bytes(graph, 3 * info.embedding_length + 2 * n_heads * info.key_length + cached)
    scores = 0 if graph.has_flash_attention else n_heads * graph.n_cells * graph.n_tokens * _FLOAT_BYTES
    return rows + scores + _mask_bytes(info, graph)


def _feed_forward_bytes(info: ModelInfo, graph: Graph) -> int:
    """Return what each token needs in each of its experts: gate, up and their product, and the way back if that needs
    room of its own.
    """
    shapes = [tensor.dims for tensor in info.tensors if ".ffn_up" in tensor.name and len(tensor.dims) > 1]
    n_ff = max((shape[1] for shape in shapes), default=0)
    n_embd, n_experts = info.embedding_length, info.experts_used
    if any(len(shape) > 2 for shape in shapes) and n_experts:
        back = n_experts * n_embd if 2 * n_ff < n_embd else 0
        n_floats = 5 * n_embd + 3 * n_experts * n_ff + back
    else:
        n_floats = 4 * n_embd + 3 * n_ff
    return _mask_bytes(info, graph) + _rows_bytes(graph, n_floats)


def _mask_bytes(info: ModelInfo, graph: Graph) -> int:
    """A mask for the layers with a window, if there are any, and one for the others."""
    if not any(info.head_counts_kv):
        return 0
    return (
        (graph.n_cells + graph.n_window_cells)
        * graph.n_tokens
        * (_HALF_BYTES if graph.has_flash_attention else _FLOAT_BYTES)
    )


def _rows_bytes(graph: Graph, n_floats: int) -> int:
    """The bytes of a row of `n_floats` float32 for each token."""
    return _FLOAT_BYTES * graph.n_tokens * n_floats
