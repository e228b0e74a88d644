"""The llama network in NumPy, written from its equations: float64 from the embedding to the logits.

What the reference is checked against; shares nothing with it but the checkpoint's tensors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlainLlama:
    """`read`: a tensor of the checkpoint by its name."""

    read: Callable[[str], NDArray[np.float32]]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float

    def logits(self, tokens: list[int]) -> Array:
        """[n_tokens, vocab_size]."""
        hidden = self._weight("model.embed_tokens.weight")[tokens]
        for number in range(self.n_layers):
            layer = f"model.layers.{number}"
            hidden = hidden + self._attention(layer, self._norm(f"{layer}.input_layernorm.weight", hidden))
            hidden = hidden + self._feed_forward(layer, self._norm(f"{layer}.post_attention_layernorm.weight", hidden))
        return self._through("lm_head.weight", self._norm("model.norm.weight", hidden))

    def _weight(self, name: str) -> Array:
        return self.read(name).astype(np.float64)

    def _through(self, name: str, hidden: Array) -> Array:
        product: Array = hidden @ self._weight(name).T
        return product

    def _norm(self, name: str, hidden: Array) -> Array:
        mean_square: Array = np.mean(hidden**2, axis=-1, keepdims=True)
        return hidden / np.sqrt(mean_square + self.rms_norm_eps) * self._weight(name)

    def _attention(self, layer: str, hidden: Array) -> Array:
        query = self._rotated(self._heads(f"{layer}.self_attn.q_proj.weight", hidden))
        key = self._rotated(self._heads(f"{layer}.self_attn.k_proj.weight", hidden))
        value = self._heads(f"{layer}.self_attn.v_proj.weight", hidden)
        later = np.triu(np.full((len(hidden), len(hidden)), -math.inf), 1)
        found = []
        for head in range(self.n_heads):
            shared = head * self.n_kv_heads // self.n_heads
            scores = query[head] @ key[shared].T / math.sqrt(self.head_dim) + later
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            found.append(weights / weights.sum(axis=-1, keepdims=True) @ value[shared])
        return self._through(f"{layer}.self_attn.o_proj.weight", np.concatenate(found, axis=-1))

    def _heads(self, name: str, hidden: Array) -> Array:
        """[n_heads, n_tokens, head_dim]."""
        return self._through(name, hidden).reshape(len(hidden), -1, self.head_dim).swapaxes(0, 1)

    def _rotated(self, heads: Array) -> Array:
        """Number pair i, of the first and the second half, is turned by position / theta ^ (2 i / head_dim)."""
        half = self.head_dim // 2
        turns = np.arange(heads.shape[1])[:, None] / self.rope_theta ** (np.arange(half) * 2 / self.head_dim)
        turned = (heads[..., :half] + 1j * heads[..., half:]) * np.exp(1j * turns)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _feed_forward(self, layer: str, hidden: Array) -> Array:
        gate = self._through(f"{layer}.mlp.gate_proj.weight", hidden)
        up = self._through(f"{layer}.mlp.up_proj.weight", hidden)
        return self._through(f"{layer}.mlp.down_proj.weight", gate / (1 + np.exp(-gate)) * up)
