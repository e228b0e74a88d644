"""The tables are those of the library that will read the file: an upgrade that moves them fails here."""

import llama_cpp
from gguf.constants import GGML_QUANT_SIZES
from llama_cpp._ggml import libggml

from worker.models.upstream.ggml_types import FILE_TYPES, TENSOR_TYPES


def test_tensor_types_are_those_of_the_library() -> None:
    numbers = range(llama_cpp.GGML_TYPE_COUNT)
    theirs = {number: (libggml.ggml_blck_size(number), libggml.ggml_type_size(number)) for number in numbers}
    ours = {number: (kind.block, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    assert {number: ours.get(number, (0, 0)) for number in theirs} == theirs, "a withdrawn type has size 0"


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    ours = {number: (kind.name, kind.block, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    # Never in a file: an intermediate of the library, whose layout the package remembers from before it changed.
    del theirs[9], ours[9]
    assert {number: ours.get(number) for number in theirs} == theirs


def test_file_types_are_those_of_the_library() -> None:
    found = {}
    for name, number in vars(llama_cpp).items():
        for prefix in ("LLAMA_FTYPE_ALL_", "LLAMA_FTYPE_MOSTLY_"):
            if name.startswith(prefix):
                found[number] = name.removeprefix(prefix).removesuffix("_MOE")
    assert found == FILE_TYPES
