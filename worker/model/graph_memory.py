"""The memory of llama.cpp's compute graph: masks, activations and logits of its largest step.

Estimates that follow the graph llama.cpp reserves when a context is made (llama_context::sched_reserve): tests compare
them with the library. Knows nothing of weights, KV cells or devices. Pure.
"""

from dataclasses import dataclass

from worker.model.info import ModelInfo

PIPELINE_COPIES = 4
"""GGML_SCHED_MAX_COPIES: of what goes into a graph, where several GPUs compute one behind the other."""

_FLOAT_BYTES, _HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The shape of the largest step."""

    n_cells: int
    """Of the whole KV cache, as llama.cpp pads it."""
    n_window_cells: int
    """Of the cache for layers with a sliding window; 0 where there are none."""
    n_tokens: int
    """Of a micro-batch, rounded up to as many for each sequence."""
    n_outputs: int
    """Rows of logits."""
    has_flash_attention: bool


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
    """Of the device that computes: a layer with its masks, or the logits after the last one, whichever is more."""
    last = logits_bytes(info, graph.n_outputs) + _rows_bytes(graph, info.embedding_length)
    return max(_attention_bytes(info, graph), _feed_forward_bytes(info, graph), last)


def graph_input_bytes(info: ModelInfo, graph: Graph) -> int:
    """Of main memory, where a GPU computes: what is made ready there for it, embedded tokens and their mask."""
    return _mask_bytes(info, graph) + _rows_bytes(graph, 2 * info.embedding_length)


def logits_bytes(info: ModelInfo, n_rows: int) -> int:
    return n_rows * info.vocab_size * _FLOAT_BYTES


def _attention_bytes(info: ModelInfo, graph: Graph) -> int:
    """Without flash attention a layer's scores are written out, in float32 as their mask."""
    n_heads, n_heads_kv = max(info.head_counts, default=0), max(info.head_counts_kv, default=0)
    cached = n_heads_kv * (info.key_length + info.value_length)
    rows = _rows_bytes(graph, 3 * info.embedding_length + 2 * n_heads * info.key_length + cached)
    scores = 0 if graph.has_flash_attention else n_heads * graph.n_cells * graph.n_tokens * _FLOAT_BYTES
    return rows + scores + _mask_bytes(info, graph)


def _feed_forward_bytes(info: ModelInfo, graph: Graph) -> int:
    """Of each token and each expert it meets: gate, up and their product, and the way back where it needs room of its
    own.
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
    """One for the layers with a window, if there are any, and one for the others."""
    if not any(info.head_counts_kv):
        return 0
    return (
        (graph.n_cells + graph.n_window_cells)
        * graph.n_tokens
        * (_HALF_BYTES if graph.has_flash_attention else _FLOAT_BYTES)
    )


def _rows_bytes(graph: Graph, n_floats: int) -> int:
    """One row of so many float32 for each token."""
    return _FLOAT_BYTES * graph.n_tokens * n_floats
