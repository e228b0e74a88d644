"""The checks that llama.cpp can compute with a model: its assumptions about tensor types and numbers.

A file that breaks one of these passes llama.cpp's own reading and its dry run, and ends the process in the first step,
by an assertion; or every logit is no number. Over other faults it ends the dry run (models/loading/places.py).
"""

import math
import re
from collections.abc import Iterable

from worker.models.facts.gguf import Metadata, Tensor

_FLOAT_ONLY = re.compile(
    r"norm\w*\.weight|\.bias$|rope_f\w+\.weight|attn_sinks\.weight|shortconv\.conv\.weight|ssm_(a|d|conv1d\.weight)$"
)
"""Tensors that ggml takes element by element beside activations, which are F32: it adds and multiplies no other type to
them (binary_op in ggml-cpu), nor has its rope, its attention sinks, its convolution and its scan. Converters write all
of these as F32, also in files of F16 and BF16. A matrix product takes any type, with a single row too."""

_NO_WEIGHTS = frozenset(("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))
"""Types that ggml has no product for, so that it ends the process on them: those of activations that weights are
multiplied with, and numbers of other kinds."""
_TABLES = re.compile(r"tid2eid|d2t|ordering")
"""Tensors of whole numbers that are looked up."""

_POSITIVE = ("rope.freq_base", "rope.freq_base_swa")


def check_computable(metadata: Metadata, architecture: str, key_length: int, tensors: Iterable[Tensor]) -> None:
    """Raises: BadModelFile: what, and why llama.cpp would fail with it."""
    for key, value in metadata.reals(f"{architecture}."):
        if not math.isfinite(value):
            raise metadata.error(f"metadata key {key!r} is {value}, must be a finite number")
        if key.endswith("epsilon") and value < 0:
            raise metadata.error(f"metadata key {key!r} is {value:g}, must be at least 0")
        if key.endswith(_POSITIVE) and value <= 0:
            raise metadata.error(f"metadata key {key!r} is {value:g}, must be more than 0")
    if key_length % 2:
        raise metadata.error(
            f"its attention heads have {key_length} numbers, must be even: a position turns pairs of numbers"
        )
    for tensor in tensors:
        if tensor.type_name in _NO_WEIGHTS and len(tensor.dims) > 1 and not _TABLES.search(tensor.name):
            raise metadata.error(
                f"tensor {tensor.name!r} is {tensor.type_name}; llama.cpp cannot multiply matrices of that type"
            )
        if tensor.type_name != "F32" and _FLOAT_ONLY.search(tensor.name):
            raise metadata.error(
                f"tensor {tensor.name!r} is {tensor.type_name}; llama.cpp computes with it as F32 only"
            )
