"""The places in the network at which both sides are looked at, and the one order in which they are computed.

Pure: no torch, no llama.cpp.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Name = Literal[
    "embedding",
    "attn_norm",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_rope",
    "k_rope",
    "k_cache",
    "v_cache",
    "scores",
    "probs",
    "attn_heads",
    "attn_out",
    "attn_residual",
    "ffn_norm",
    "swiglu",
    "ffn_out",
    "block",
    "final_norm",
    "logits",
]
NAMES: tuple[Name, ...] = get_args(Name)
"""The names in the order of computation; `embedding`, `final_norm` and `logits` are there once, the others in every
layer."""

CHECKPOINT: dict[Name, str] = {
    "embedding": "0",
    "attn_norm": "1",
    "q_proj": "2",
    "k_proj": "2",
    "v_proj": "2",
    "q_rope": "1B",
    "k_rope": "1B",
    "k_cache": "3",
    "v_cache": "3",
    "scores": "4",
    "probs": "4",
    "attn_heads": "5",
    "attn_out": "5",
    "attn_residual": "5",
    "ffn_norm": "6",
    "swiglu": "6",
    "ffn_out": "6",
    "block": "7",
    "final_norm": "8",
    "logits": "8",
}
"""The number in the checkpoint list."""

ONCE: tuple[Name, ...] = ("embedding", "final_norm", "logits")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A name and its layer; -1 for those before the first layer, n_layers for those after the last, so that points
    sort in the order of computation by (layer, index of the name)."""

    layer: int
    index: int
    """The index of the name in NAMES."""

    @classmethod
    def of(cls, name: Name, layer: int) -> "Point":
        return cls(layer, NAMES.index(name))

    @property
    def name(self) -> Name:
        return NAMES[self.index]

    def __str__(self) -> str:
        return self.name if self.name in ONCE else f"blk.{self.layer} {self.name}"


Activations = dict[Point, NDArray[np.floating]]
"""Each [n_tokens, features]; features of projections, caches and heads are head after head, in the order of the
checkpoint (RoPE pairs are i and i + head_dim / 2, as transformers has them; llama.cpp's interleaved order is put back).
`scores` (scaled, after the causal mask: masked entries are 0) and `probs` are [n_heads, n_tokens, n_tokens], query
before key. `k_cache` and `v_cache` of the reference are k_rope and v_proj."""
