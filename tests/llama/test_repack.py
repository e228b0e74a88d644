"""The library lays out anew all of a file that it can, or nothing, which depends on the whole file."""

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.models.plan.rehearsed import info
from worker.llama.library import call_ggml, open_library
from worker.llama.repack import TILES, Dims, InitParams, LaidOut, TensorHead, layout_of, may_repack
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo
from worker.models.upstream.ggml_types import TENSOR_TYPES

LAYOUTS = {"Q4_K": TILES, "Q6_K": TILES, "IQ4_NL": "CPU_REPACK", "F16": TILES}
"""A library that lays these types out so, a tenth larger, and no others."""


def matrix(type_name: str, name: str = "blk.0.attn_q.weight", dims: tuple[int, ...] = (256, 32)) -> Tensor:
    return Tensor(name, dims, type_name, 1000)


def layout(tensor: Tensor) -> LaidOut | None:
    return LaidOut(LAYOUTS[tensor.type_name], 1100) if tensor.type_name in LAYOUTS else None


def halved(tensor: Tensor) -> LaidOut | None:
    """The room of ggml's AMX code, which counts the first matrix of a stack alone."""
    found = layout(tensor)
    return replace(found, n_bytes=found.n_bytes // 2) if found and len(tensor.dims) > 2 else found


def model(*tensors: Tensor) -> ModelInfo:
    return replace(info(), tensors=tensors)


@pytest.mark.parametrize(
    "types", [kinds for n in range(4) for kinds in itertools.combinations(["Q4_K", "Q6_K", "IQ4_NL", "Q5_0"], n)]
)
def test_bits_are_kept_by_tiles_alone_and_a_file_is_laid_out_as_a_whole(types: tuple[str, ...]) -> None:
    tensors = [matrix(kind, f"blk.{at}.attn_q.weight") for at, kind in enumerate(types)]
    assert may_repack([model(*tensors)], layout=layout, keeps_bits=False)
    assert may_repack([model(*tensors)], layout=layout, keeps_bits=True) is ("IQ4_NL" not in types)


def test_what_no_row_is_multiplied_with_decides_nothing() -> None:
    """Rows of the token embedding are looked up, unless it is the output matrix too."""
    embedding, output = matrix("IQ4_NL", "token_embd.weight"), matrix("Q6_K", "output.weight")
    norm = matrix("IQ4_NL", "blk.0.attn_norm.weight", (256,))
    assert may_repack([model(embedding, norm, output)], layout=layout, keeps_bits=True)
    assert not may_repack([model(embedding, norm)], layout=layout, keeps_bits=True)


def test_models_of_one_process_are_decided_together() -> None:
    served, draft = model(matrix("Q4_K")), model(matrix("IQ4_NL"))
    assert not may_repack([served, draft], layout=layout, keeps_bits=True)
    assert may_repack([served], layout=layout, keeps_bits=True)


@pytest.mark.parametrize("keeps_bits", [True, False])
def test_a_file_with_a_stack_that_tiles_would_not_have_room_for_is_left_as_it_is(*, keeps_bits: bool) -> None:
    stack = matrix("Q4_K", "blk.0.attn_k_b.weight", (256, 32, 4))
    assert not may_repack([model(stack, matrix("Q6_K"))], layout=halved, keeps_bits=keeps_bits)
    assert may_repack([model(stack, matrix("Q6_K"))], layout=layout, keeps_bits=keeps_bits)


@pytest.mark.parametrize("keeps_bits", [True, False])
@pytest.mark.parametrize(("n_f16", "n_q4_k"), [(1, 0), (2, 1), (1, 1), (1, 2), (0, 1)])
def test_types_that_are_slower_in_tiles_stay_in_the_file_where_they_are_most_of_it(
    n_f16: int, n_q4_k: int, *, keeps_bits: bool
) -> None:
    tensors = [matrix(kind, f"blk.{at}.attn_q.weight") for at, kind in enumerate(["F16"] * n_f16 + ["Q4_K"] * n_q4_k)]
    assert may_repack([model(*tensors)], layout=layout, keeps_bits=keeps_bits) is (n_f16 <= n_q4_k)


IN_TILES = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


def test_the_library_lays_these_types_out_in_tiles_or_none() -> None:
    """docs/decisions.md has what each gains or loses; one more is to be measured before it is used."""
    found = set()
    for kind in TENSOR_TYPES.values():
        laid_out = layout_of(Tensor("blk.0.attn_q.weight", (2048, 64), kind.name, kind.n_bytes(2048 * 64)))
        if laid_out is not None and laid_out.buffers == TILES:
            found.add(kind.name)
    assert found in (set(), set(IN_TILES))


@pytest.fixture
def context() -> Iterator[ctypes.c_void_p]:
    open_library()
    made = ctypes.c_void_p(call_ggml("ggml_init", ctypes.c_void_p, InitParams(2**16, None, True)))
    yield made
    call_ggml("ggml_free", None, made)


def tensor(context: ctypes.c_void_p, type_id: int, dims: Dims) -> int:
    sizes = map(ctypes.c_int64, dims)
    return int(call_ggml("ggml_new_tensor_4d", ctypes.c_void_p, context, ctypes.c_int(type_id), *sizes))


@pytest.mark.parametrize("type_id", sorted(TENSOR_TYPES))
def test_the_librarys_own_tensors_are_laid_out_as_expected(context: ctypes.c_void_p, type_id: int) -> None:
    """Else a trial would corrupt memory in silence."""
    dims = (2 * TENSOR_TYPES[type_id].block, 3, 5, 7)
    head = TensorHead.from_address(tensor(context, type_id, dims))
    row = TENSOR_TYPES[type_id].n_bytes(dims[0])
    assert (head.type, head.buffer, tuple(head.ne)) == (type_id, None, dims)
    assert tuple(head.nb) == (TENSOR_TYPES[type_id].block_bytes, row, row * dims[1], row * dims[1] * dims[2])
