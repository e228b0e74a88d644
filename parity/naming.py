"""The names of the tensors of a llama GGUF in a checkpoint, and the order of their rows.

Only the llama architecture: others rename, merge and rescale tensors in ways of their own.

llama.cpp rotates neighbouring rows (2i, 2i + 1) of a head of Q and K, transformers rows i and i + head_dim / 2. So the
converter interleaves the two halves of every head of both; V and all others are as in the checkpoint.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from gguf import MODEL_ARCH, TensorNameMap, get_tensor_name_map
from numpy.typing import NDArray

from worker.models.facts.info import ModelInfo

Number = TypeVar("Number", bound=np.floating)

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
"""A GGUF of a model with tied embeddings has no output matrix."""
NO_COUNTERPART = ("rope_freqs.weight",)
"""The factors of long-context RoPE; a checkpoint has them in its config."""

_SUFFIXES = (".weight", ".bias")
_ROTATED = re.compile(r"blk\.(?P<layer>\d+)\.attn_(?P<what>[qk])\.(?:weight|bias)")


@dataclass(frozen=True, slots=True)
class Naming:
    """Names and row orders of one model. Made by `of`."""

    names: TensorNameMap
    head_counts: tuple[int, ...]
    head_counts_kv: tuple[int, ...]

    @classmethod
    def of(cls, info: ModelInfo) -> Self:
        return cls(get_tensor_name_map(MODEL_ARCH.LLAMA, info.block_count), info.head_counts, info.head_counts_kv)

    def gguf_name(self, name: str) -> str | None:
        """The GGUF's name of a checkpoint's tensor; None for one that no GGUF has, such as `rotary_emb.inv_freq`."""
        found = self.names.get_name(name, try_suffixes=_SUFFIXES)
        return found if found is not None and found.endswith(_SUFFIXES) else None

    def by_gguf_name(self, names: Iterable[str]) -> dict[str, str]:
        """GGUF name → checkpoint name, for those `names` of a checkpoint that a GGUF can have.

        Where there is no `lm_head.weight` the embedding is the output matrix too.
        """
        found = {known: name for name in sorted(names) if (known := self.gguf_name(name)) is not None}
        if EMBEDDING in found:
            found.setdefault(OUTPUT, found[EMBEDDING])
        return found

    def in_gguf_order(self, name: str, values: NDArray[Number]) -> NDArray[Number]:
        """The values of a checkpoint's tensor with the rows as in the GGUF, where it is called `name`."""
        rotated = _ROTATED.fullmatch(name)
        if rotated is None:
            return values
        counts = self.head_counts if rotated["what"] == "q" else self.head_counts_kv
        return to_gguf_order(values, counts[int(rotated["layer"])])


def not_comparable(info: ModelInfo) -> str | None:
    """Return why the tensors of a model have no counterpart one by one in a checkpoint; None if they have."""
    if info.architecture != "llama":
        return f"architecture {info.architecture}: tensors are compared for llama only"
    if any("_exps." in tensor.name for tensor in info.tensors):
        return "a mixture of experts: a GGUF has all experts of a layer in one tensor, a checkpoint each in its own"
    return None


def to_gguf_order(values: NDArray[Number], n_heads: int, axis: int = 0) -> NDArray[Number]:
    """The halves of each of `n_heads` equal parts of `axis` interleaved: rows 0, d/2, 1, d/2 + 1, … of a head.

    Raises: ValueError where the axis is no multiple of 2 * n_heads.
    """
    return _swapped(values, (n_heads, 2, -1), axis)


def to_checkpoint_order(values: NDArray[Number], n_heads: int, axis: int = 0) -> NDArray[Number]:
    """The inverse of `to_gguf_order`: rows 0, 2, 4, … of a head, then 1, 3, 5, …"""
    return _swapped(values, (n_heads, -1, 2), axis)


def _swapped(values: NDArray[Number], split: tuple[int, int, int], axis: int) -> NDArray[Number]:
    rows = np.moveaxis(values, axis, 0)
    swapped = rows.reshape(*split, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    return np.moveaxis(swapped, 0, axis)
