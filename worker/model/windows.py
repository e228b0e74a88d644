"""Which layers of a model look back through a sliding window only, and how far, by a GGUF's metadata.

Owns the meaning of those keys and llama.cpp's own patterns for architectures whose files do not tell. Pure. Source:
load_arch_hparams of each architecture, llama_hparams::set_swa_pattern.
"""

from dataclasses import dataclass

from worker.model.attention import MAX_HEADS
from worker.model.metadata import Metadata

_MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Windows:
    """Of the layers that have one; there are some."""

    length: int
    """Tokens that these layers look back on."""
    in_layer: tuple[bool, ...]
    key_length: int
    value_length: int
    """Numbers per head and token in the K and in the V cache of these layers."""

    @property
    def n_layers(self) -> int:
        return sum(self.in_layer)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Which layers have a window where the file does not tell: all but one of each `period` layers."""

    period: int
    is_first: bool = False
    """That one is the first of them, not the last."""
    length: int = 0
    """Where the file has no length; 0: then there are no windows."""


_PATTERNS = {
    "afmoe": _Pattern(4),
    "cohere2": _Pattern(4),
    "cohere2moe": _Pattern(4, is_first=True),
    "exaone-moe": _Pattern(4, length=128),
    "exaone4": _Pattern(4, length=4096),
    "gemma2": _Pattern(2, length=4096),
    "gemma3": _Pattern(6),
    "gemma3n": _Pattern(5),
    "gpt-oss": _Pattern(2),
    "laguna": _Pattern(4, is_first=True),
    "llama4": _Pattern(4, length=8192),
    "mellum": _Pattern(4),
    "muse-glimmer": _Pattern(4),
    "olmo2": _Pattern(4),
    "plamo3": _Pattern(8),
    "smallthinker": _Pattern(4, is_first=True),
}
_TOLD_BY_THE_FILE = ("gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")
"""Architectures whose files have a flag for each layer."""

_EXAONE_LAYERS = 64
"""EXAONE 4 has windows in its largest size only, whatever the file says."""
_SMALLTHINKER_LENGTH, _LLAMA_LENGTH = 4096, 8192
"""llama.cpp's own, whatever length the file has; a length of 0 there means no windows."""


def windows_of(
    metadata: Metadata, architecture: str, n_layers: int, *, n_mtp_blocks: int, key_length: int, value_length: int
) -> Windows | None:
    """None where every layer looks back on everything."""
    if architecture not in _PATTERNS and architecture not in _TOLD_BY_THE_FILE:
        return None
    length = _length(metadata, architecture, n_layers - n_mtp_blocks)
    in_layer = _in_layer(metadata, architecture, n_layers, n_mtp_blocks)
    if not length or not any(in_layer):
        return None
    prefix = f"{architecture}.attention"
    return Windows(
        length=length,
        in_layer=in_layer,
        key_length=metadata.number(f"{prefix}.key_length_swa", MAX_HEADS, default=key_length),
        value_length=metadata.number(f"{prefix}.value_length_swa", MAX_HEADS, default=value_length),
    )


def n_layers_with_cells(metadata: Metadata, architecture: str, n_layers: int) -> int:
    """The layers behind these use the cells of earlier ones."""
    if architecture == "gemma3n":
        return min(20, n_layers)
    if architecture == "gemma4":
        return n_layers - metadata.number(f"{architecture}.attention.shared_kv_layers", n_layers, low=0, default=0)
    return n_layers


def _length(metadata: Metadata, architecture: str, n_layers: int) -> int:
    pattern = _PATTERNS.get(architecture)
    default = pattern.length if pattern else 0
    length = metadata.number(f"{architecture}.attention.sliding_window", _MAX_LENGTH, low=0, default=default)
    match architecture:
        case "exaone4":
            return length if n_layers == _EXAONE_LAYERS else 0
        case "llama4":
            return _LLAMA_LENGTH if length else 0
        case "smallthinker":
            return _SMALLTHINKER_LENGTH if length else 0
        case _:
            return length


def _in_layer(metadata: Metadata, architecture: str, n_layers: int, n_mtp_blocks: int) -> tuple[bool, ...]:
    key = f"{architecture}.attention.sliding_window_pattern"
    if (told := metadata.flags(key, n_layers)) is not None:
        return told
    if (pattern := _PATTERNS.get(architecture)) is None:
        return (False,) * n_layers
    period = metadata.number(key, _MAX_LENGTH, low=0, default=pattern.period)
    without = 0 if pattern.is_first else period - 1
    n_main = n_layers - n_mtp_blocks
    return tuple(layer < n_main and (not period or layer % period != without) for layer in range(n_layers))
