"""Inputs and outputs of PyTorch's modules of a llama model, stored under the points of points.py.

One run of one text per Recorder; its hooks are gone when it is closed.
"""

from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from parity.points import Activations, Name, Point

_Side = Literal["in", "out"]

_IN_A_LAYER: tuple[tuple[Name, str, _Side], ...] = (
    ("attn_norm", "input_layernorm", "out"),
    ("q_proj", "self_attn.q_proj", "out"),
    ("k_proj", "self_attn.k_proj", "out"),
    ("v_proj", "self_attn.v_proj", "out"),
    ("v_cache", "self_attn.v_proj", "out"),
    ("attn_heads", "self_attn.o_proj", "in"),
    ("attn_out", "self_attn.o_proj", "out"),
    ("attn_residual", "post_attention_layernorm", "in"),
    ("ffn_norm", "post_attention_layernorm", "out"),
    ("swiglu", "mlp.down_proj", "in"),
    ("ffn_out", "mlp", "out"),
    ("block", "", "out"),
)
"""A point, the module of the layer that shows it (`""`: the layer), and on which side."""


class Recorder:
    """`with Recorder(model) as recorder:` run the model once with `recorder=recorder`; then `recorder.found`."""

    def __init__(self, model: Any) -> None:
        self.found: Activations = {}
        self._model = model
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        inner = self._model.model
        n_layers = len(inner.layers)
        self._watch(Point.of("embedding", -1), inner.embed_tokens, "out")
        for number, layer in enumerate(inner.layers):
            for name, module, side in _IN_A_LAYER:
                self._watch(Point.of(name, number), layer.get_submodule(module), side)
        self._watch(Point.of("final_norm", n_layers), inner.norm, "out")
        self._watch(Point.of("logits", n_layers), self._model.lm_head, "out")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def attention(self, layer: int, query: Any, key: Any, scores: Any, probs: Any) -> None:
        """The values between the projections, each [1, n_heads, n_tokens, …]; `scores` with masked entries 0."""
        self.found[Point.of("q_rope", layer)] = _heads_in_a_row(query)
        self.found[Point.of("k_rope", layer)] = self.found[Point.of("k_cache", layer)] = _heads_in_a_row(key)
        self.found[Point.of("scores", layer)] = scores[0].numpy()
        self.found[Point.of("probs", layer)] = probs[0].numpy()

    def _watch(self, point: Point, module: Any, side: _Side) -> None:
        if side == "in":
            hook = module.register_forward_pre_hook(lambda _, given: self._keep(point, given[0]))
        else:
            hook = module.register_forward_hook(lambda _, __, result: self._keep(point, result))
        self._hooks.append(hook)

    def _keep(self, point: Point, tensor: Any) -> None:
        self.found[point] = tensor[0].numpy()


def _heads_in_a_row(tensor: Any) -> np.ndarray[Any, Any]:
    """[1, n_heads, n_tokens, head_dim] to [n_tokens, n_heads * head_dim]."""
    found: np.ndarray[Any, Any] = tensor[0].transpose(0, 1).flatten(1).numpy()
    return found
