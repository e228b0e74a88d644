"""Products of quantised matrices in ggml's CPU backend (patches/ggml-cpu/rows16.h) are right and equal under load."""

from functools import cache

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.graphs import TYPE_IDS, Floats, Graph, quantised
from worker.llama.invariance import PRODUCT_TYPES, has_own_products
from worker.llama.library import open_library
from worker.llama.repack import LaidOut, layout_of
from worker.models.facts.gguf import Tensor

TYPES = sorted(PRODUCT_TYPES)
MAX_COLUMNS = 40


@pytest.fixture(autouse=True)
def _needs_them() -> None:
    open_library()
    if not has_own_products():
        pytest.skip("this build of llama.cpp, or this processor, does not have them")


@cache
def weights(type_name: str, n_rows: int, n_columns: int) -> tuple[bytes, Floats]:
    """Weights, and what they mean."""
    chance = np.random.default_rng(n_rows)
    data = quantised(chance.normal(0.02, 0.1, (n_rows, n_columns)).astype(np.float32), type_name)
    flat = np.frombuffer(data, np.uint8).reshape(n_rows, -1)
    return data, gguf.quants.dequantize(flat, gguf.GGMLQuantizationType(TYPE_IDS[type_name]))


@cache
def columns(n_columns: int) -> Floats:
    chance = np.random.default_rng(7)
    return chance.normal(0, 1, (MAX_COLUMNS, n_columns)).astype(np.float32)


def product(type_name: str, n_rows: int, of: Floats, n_threads: int = 1, *, is_laid_out: bool = False) -> Floats:
    data, _ = weights(type_name, n_rows, of.shape[1])
    with Graph.on_cpu(n_threads) as graph:
        matrix = graph.tensor((of.shape[1], n_rows), data, type_name, is_laid_out=is_laid_out)
        return graph.computed(graph.op("ggml_mul_mat", matrix, graph.floats(of)), (len(of), n_rows))


SHAPES = [(n_rows, n_columns) for n_rows in (1, 15, 16, 17, 100) for n_columns in (256, 2304)]
NOT_OF_256 = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@pytest.mark.parametrize(
    ("type_name", "n_rows", "n_columns"),
    [*((name, *shape) for name in TYPES for shape in SHAPES), *((name, 33, 96) for name in NOT_OF_256)],
)
def test_it_is_the_product_of_what_the_weights_mean(type_name: str, n_rows: int, n_columns: int) -> None:
    """Up to what quantising the other side to eight bits costs."""
    _, meant = weights(type_name, n_rows, n_columns)
    of = columns(n_columns)
    expected = of.astype(np.float64) @ meant.astype(np.float64).T
    assert np.linalg.norm(product(type_name, n_rows, of) - expected) <= 0.012 * np.linalg.norm(expected)


@settings(max_examples=60, deadline=None)
@given(
    type_name=st.sampled_from(TYPES),
    n_rows=st.integers(1, 70),
    chosen=st.lists(st.integers(0, MAX_COLUMNS - 1), min_size=1, max_size=MAX_COLUMNS),
    n_threads=st.integers(1, 3),
)
def test_a_column_has_the_same_bits_under_any_load(
    type_name: str, n_rows: int, chosen: list[int], n_threads: int
) -> None:
    """It does not matter what else is multiplied, in which order, or by how many threads."""
    of = columns(2304)
    together = product(type_name, n_rows, of[chosen], n_threads)
    for place, column in enumerate(chosen):
        assert np.array_equal(together[place], product(type_name, n_rows, of[[column]])[0])


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("n_columns", [256, 2304])
@pytest.mark.parametrize("n_rows", [16, 112])
def test_rows_that_were_laid_out_anew_give_the_same_bits(type_name: str, n_rows: int, n_columns: int) -> None:
    for n in (1, 3, 8, MAX_COLUMNS):
        of = columns(n_columns)[:n]
        assert np.array_equal(product(type_name, n_rows, of, 2, is_laid_out=True), product(type_name, n_rows, of))


@pytest.mark.parametrize(("n_rows", "is_one"), [(16, True), (1600, True), (15, False), (24, False)])
def test_panels_of_sixteen_rows_are_laid_out(n_rows: int, is_one: bool) -> None:
    found = layout_of(Tensor("blk.0.ffn_up.weight", (256, n_rows), "Q5_K", 176 * n_rows))
    assert found == (LaidOut("CPU_REPACK", 176 * n_rows) if is_one else None)


def test_a_product_of_several_matrices_is_left_to_ggml() -> None:
    """Stacks of matrices, as the heads of some models are."""
    data, meant = weights("Q8_0", 32, 256)
    of = columns(256)[:6].reshape(2, 3, 256)
    with Graph.on_cpu() as graph:
        matrix = graph.tensor((256, 16, 2), data, "Q8_0")
        found = graph.computed(graph.op("ggml_mul_mat", matrix, graph.floats(of)), (2, 3, 16))
    expected = np.einsum("bnk,bmk->bnm", of, meant.reshape(2, 16, 256))
    assert np.linalg.norm(found - expected) <= 0.012 * np.linalg.norm(expected)
