"""Layers with attention, and those of them that look back through a sliding window only.

Owns the meaning of a GGUF's keys for these; info.py has the other keys, and models/upstream/architectures.py
llama.cpp's own patterns for files that do not say which layers have a window. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.models.facts.gguf import Metadata
from worker.models.upstream.architectures import (
    ATTENTION_FREE,
    EXAONE_LAYERS,
    LLAMA_LENGTH,
    SMALLTHINKER_LENGTH,
    WINDOW_PATTERNS,
    WINDOWS_FLAGGED_IN_THE_FILE,
    WINDOWS_OF_ALL_ATTENTION,
)

MAX_HEADS = 1 << 16
MAX_CONTEXT = 2**31 - 1


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
    for layer, (n_heads, n_heads_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if n_heads_kv and n_heads % n_heads_kv:
            raise metadata.error(f"metadata key '{key}_kv': {n_heads_kv} KV heads for {n_heads} heads in layer {layer}")
    return heads, heads_kv


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
    return metadata.number(f"{architecture}.attention.value_length", MAX_HEADS, default=head_length)


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
