"""Layers with attention, those of them that look back through a sliding window only, and the state that the others keep
of each job.

Owns the meaning of a GGUF's keys for these; info.py has the other keys, and upstream/architectures.py llama.cpp's own
patterns for files that do not say which layers have a window. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.model.gguf import Metadata
from worker.upstream.architectures import (
    ATTENTION_FREE,
    CELLS_BY_SEQUENCE,
    EXAONE_LAYERS,
    GEMMA3N_CELL_LAYERS,
    GLM_SPARSE_INDEX_LENGTH,
    HYBRIDS_BY_INTERVAL,
    HYBRIDS_OF_SEVERAL_PARTS,
    INDEXED_THROUGHOUT,
    LLAMA_LENGTH,
    OF_SEVERAL_PARTS,
    SMALLTHINKER_LENGTH,
    WINDOW_PATTERNS,
    WINDOWS_FLAGGED_IN_THE_FILE,
    WINDOWS_OF_ALL_ATTENTION,
    WITH_A_ROUTER,
)
from worker.upstream.numbers import MAX_LAYERS

MAX_HEADS = 1 << 16
MAX_STATE = 1 << 20
MAX_CONTEXT = 2**31 - 1
MAX_RATIO = 1 << 16


@dataclass(frozen=True, slots=True)
class Windows:
    """The sliding windows of the layers that have one; at least one layer has."""

    length: int
    """The number of tokens that these layers look back on."""
    in_layer: tuple[bool, ...]
    key_length: int
    value_length: int
    """Numbers per head and token in the K and in the V cache of these layers."""

    @property
    def n_layers(self) -> int:
        return sum(self.in_layer)


def head_counts(metadata: Metadata, architecture: str, n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query heads and KV heads per layer; layers without attention have 0 (hybrid models)."""
    key = f"{architecture}.attention.head_count"
    is_attention_free = architecture in ATTENTION_FREE
    heads = metadata.per_layer(key, n_layers, MAX_HEADS, default=(0,) * n_layers if is_attention_free else None)
    if is_attention_free:
        return heads, (0,) * n_layers
    if not any(heads):
        raise metadata.error(f"metadata key {key!r} is 0, must be in 1..{MAX_HEADS}")
    heads_kv = metadata.per_layer(f"{key}_kv", n_layers, MAX_HEADS, default=heads)
    recurrent = _recurrent_layers(metadata, architecture, n_layers)
    heads_kv = tuple(0 if is_recurrent else n_kv for n_kv, is_recurrent in zip(heads_kv, recurrent, strict=True))
    for layer, (n_heads, n_heads_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if n_heads_kv and n_heads % n_heads_kv:
            raise metadata.error(f"metadata key '{key}_kv': {n_heads_kv} KV heads for {n_heads} heads in layer {layer}")
    return heads, heads_kv


def _recurrent_layers(metadata: Metadata, architecture: str, n_layers: int) -> tuple[bool, ...]:
    """Return which layers have no attention, if the head counts do not say it."""
    if architecture not in HYBRIDS_BY_INTERVAL:
        return (False,) * n_layers
    flags = metadata.flags(f"{architecture}.attention.recurrent_layers", n_layers)
    default = HYBRIDS_BY_INTERVAL[architecture]
    interval = metadata.number(f"{architecture}.full_attention_interval", n_layers, default=min(default, n_layers))
    return flags or tuple((layer + 1) % interval > 0 for layer in range(n_layers))


def state_length(metadata: Metadata, architecture: str, embedding_length: int, n_heads: int, key_length: int) -> int:
    """Float32 numbers that a recurrent layer keeps of each sequence. Source: llama_hparams::n_embd_r, n_embd_s."""

    def size(name: str, default: int = 0) -> int:
        return metadata.number(f"{architecture}.{name}", MAX_STATE, low=0, default=default)

    if wkv_head := size("wkv.head_size"):
        return embedding_length * (size("token_shift_count", default=2) + wkv_head)
    if n_short := size("shortconv.l_cache"):
        return embedding_length * (n_short - 1)
    if head := size("kda.head_dim"):
        return (3 * max(0, size("ssm.conv_kernel", default=4) - 1) + head) * head * n_heads
    if architecture == "minimax-01":
        return key_length * key_length * n_heads
    n_inner, n_state = size("ssm.inner_size"), size("ssm.state_size")
    n_convolved = n_inner + 2 * size("ssm.group_count") * n_state
    return max(0, size("ssm.conv_kernel") - 1) * n_convolved + n_state * n_inner


def windows_of(
    metadata: Metadata,
    architecture: str,
    heads_kv: Sequence[int],
    *,
    n_mtp_blocks: int,
    key_length: int,
    value_length: int,
) -> Windows | None:
    """None where every layer looks back on everything. `heads_kv`: of each layer."""
    if architecture not in (*WINDOW_PATTERNS, *WINDOWS_FLAGGED_IN_THE_FILE, *WINDOWS_OF_ALL_ATTENTION):
        return None
    n_layers = len(heads_kv)
    length = _window_length(metadata, architecture, n_layers - n_mtp_blocks)
    if architecture in WINDOWS_OF_ALL_ATTENTION:
        in_layer = tuple(map(bool, heads_kv))
    else:
        in_layer = _has_window(metadata, architecture, n_layers, n_mtp_blocks)
    if not length or not any(in_layer):
        return None
    prefix = f"{architecture}.attention"
    return Windows(
        length=length,
        in_layer=in_layer,
        key_length=metadata.number(f"{prefix}.key_length_swa", MAX_HEADS, default=key_length),
        value_length=metadata.number(f"{prefix}.value_length_swa", MAX_HEADS, default=value_length),
    )


def cached_value_length(metadata: Metadata, architecture: str, head_length: int) -> int:
    """Numbers per head and token in the V cache. Latent attention makes V of the K cells."""
    if metadata.number(f"{architecture}.attention.key_length_mla", MAX_HEADS, low=0, default=0):
        return 0
    if architecture in CELLS_BY_SEQUENCE:
        return 0
    return metadata.number(f"{architecture}.attention.value_length", MAX_HEADS, default=head_length)


@dataclass(frozen=True, slots=True)
class Beside:
    """The cache of a layer beside the cells of its heads."""

    key_length: int = 0
    value_length: int = 0
    """Numbers per token in the K and in the V cache that belong to no head."""
    compress_ratio: int = 0
    """The number of tokens for which there is one more cell; 0 if there is none."""


def beside_heads(
    metadata: Metadata, architecture: str, heads_kv: Sequence[int], key_length: int, value_length: int
) -> tuple[Beside, ...]:
    """Return for each layer what it caches for an index, in which attention looks up its cells, or for a router.

    Source: llama_kv_cache_dsa, llama_kv_cache_msa, llama_kv_cache_dsv4, llama_memory_hybrid_idx, and graniteswitch's
    load_arch_hparams.
    """
    nothing, n_layers, name = Beside(), len(heads_kv), f"{architecture}.attention.indexer"
    if architecture in WITH_A_ROUTER:
        return (*[nothing] * (n_layers - 1), Beside(key_length, value_length))
    length = metadata.number(f"{name}.key_length", MAX_HEADS, low=0, default=0)
    if not length or architecture not in (*OF_SEVERAL_PARTS, *HYBRIDS_OF_SEVERAL_PARTS):
        return (nothing,) * n_layers
    if architecture in CELLS_BY_SEQUENCE:
        return tuple(Beside(length, 0, ratio) for ratio in _compress_ratios(metadata, architecture, n_layers))
    index = Beside(length * (3 if architecture == "glm5-next" else 1), value_length * (architecture == "minimax-m3"))
    indexed = _indexed_layers(metadata, architecture, n_layers)
    return tuple(index if n_kv and is_indexed else nothing for n_kv, is_indexed in zip(heads_kv, indexed, strict=True))


def _compress_ratios(metadata: Metadata, architecture: str, n_layers: int) -> list[int]:
    """Return the number for each layer; the array may be longer. Source: load_arch_hparams of deepseek4.cpp."""
    key = f"{architecture}.attention.compress_ratios"
    n_found = metadata.n_numbers(key, ("u32", "i32"))
    if n_found is None or not n_layers <= n_found <= MAX_LAYERS:
        raise metadata.error(f"metadata key {key!r} has {n_found or 0} numbers, must have {n_layers} to {MAX_LAYERS}")
    ratios = [int(ratio) for ratio in metadata.whole_numbers(key)]
    if not 0 <= min(ratios) <= max(ratios) <= MAX_RATIO:
        raise metadata.error(f"metadata key {key!r} has {min(ratios)} to {max(ratios)}, must have 0 to {MAX_RATIO}")
    return ratios[:n_layers]


def _indexed_layers(metadata: Metadata, architecture: str, n_layers: int) -> tuple[bool, ...]:
    types = f"{architecture}.attention.indexer.types"
    if architecture == "minimax-m3":
        n_without = metadata.number(f"{architecture}.leading_dense_block_count", n_layers, low=0, default=0)
        return tuple(layer >= n_without for layer in range(n_layers))
    if architecture == "glm-dsa" and not metadata.has(types):
        is_sparse = metadata.number(f"{architecture}.context_length", MAX_CONTEXT) >= GLM_SPARSE_INDEX_LENGTH
        return tuple(not is_sparse or layer < 2 or layer % 4 == 2 for layer in range(n_layers))
    flags = None if architecture in INDEXED_THROUGHOUT else metadata.flags(types, n_layers)
    return flags or (True,) * n_layers


def n_layers_with_cells(metadata: Metadata, architecture: str, n_layers: int, n_mtp_blocks: int) -> int:
    """Return how many layers have KV cells of their own; the layers after them use the cells of earlier ones, or
    predict the tokens after the next and are not computed.
    """
    if architecture == "gemma3n":
        return min(GEMMA3N_CELL_LAYERS, n_layers)
    if architecture == "gemma4":
        return n_layers - metadata.number(f"{architecture}.attention.shared_kv_layers", n_layers, low=0, default=0)
    return n_layers if architecture in CELLS_BY_SEQUENCE else n_layers - n_mtp_blocks


def _window_length(metadata: Metadata, architecture: str, n_layers: int) -> int:
    pattern = WINDOW_PATTERNS.get(architecture)
    default = pattern.length if pattern else 0
    length = metadata.number(f"{architecture}.attention.sliding_window", MAX_CONTEXT, low=0, default=default)
    match architecture:
        case "exaone4":
            return length if n_layers == EXAONE_LAYERS else 0
        case "llama4":
            return LLAMA_LENGTH if length else 0
        case "smallthinker":
            return SMALLTHINKER_LENGTH if length else 0
        case _:
            return length


def _has_window(metadata: Metadata, architecture: str, n_layers: int, n_mtp_blocks: int) -> tuple[bool, ...]:
    key = f"{architecture}.attention.sliding_window_pattern"
    if (flags := metadata.flags(key, n_layers)) is not None:
        return flags
    if (pattern := WINDOW_PATTERNS.get(architecture)) is None:
        return (False,) * n_layers
    period = metadata.number(key, MAX_CONTEXT, low=0, default=pattern.period)
    without = 0 if pattern.is_first else period - 1
    n_main = n_layers - n_mtp_blocks
    return tuple(layer < n_main and (not period or layer % period != without) for layer in range(n_layers))
