"""Attention in ggml's CPU backend (patches/ggml-cpu/attention16.h) is right, and equal under any load."""

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.llama.graphs import Floats, Graph
from worker.llama.invariance import has_own_products
from worker.llama.library import call_ggml, open_library

Halves = NDArray[np.float16]
Cells = NDArray[np.int64]


@pytest.fixture(autouse=True)
def _needs_it() -> None:
    open_library()
    if not has_own_products():
        pytest.skip("this build of llama.cpp, or this processor, does not have it")


@dataclass(frozen=True)
class Shape:
    """Heads and what they have."""

    n_heads: int = 6
    n_heads_kv: int = 2
    length_k: int = 64
    length_v: int = 64
    max_bias: float = 0.0
    softcap: float = 0.0
    has_sinks: bool = False

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.length_k)


@dataclass(frozen=True)
class Rows:
    """Some rows and all cells, of every head."""

    q: Floats
    """[head, row, number]"""
    k: Halves
    """[head, cell, number]"""
    v: Halves
    mask: Halves
    """[row, cell]: -inf where the row does not see the cell, else what is added."""
    sinks: Floats
    """[head]"""


def rows_of(shape: Shape, mask: NDArray[np.float64], seed: int = 0) -> Rows:
    n_rows, n_cells = mask.shape
    chance = np.random.default_rng(seed)

    def normal(*dims: int) -> NDArray[np.float64]:
        return chance.normal(0, 1, dims)

    return Rows(
        normal(shape.n_heads, n_rows, shape.length_k).astype(np.float32),
        normal(shape.n_heads_kv, n_cells, shape.length_k).astype(np.float16),
        normal(shape.n_heads_kv, n_cells, shape.length_v).astype(np.float16),
        mask.astype(np.float16),
        normal(shape.n_heads).astype(np.float32),
    )


def attention(shape: Shape, rows: Rows, n_threads: int = 1) -> Floats:
    """[row, head, number]"""
    n_rows = rows.q.shape[1]
    with Graph.on_cpu(n_threads) as graph:
        q, k, v, mask = graph.floats(rows.q), graph.halves(rows.k), graph.halves(rows.v), graph.halves(rows.mask)
        floats = map(ctypes.c_float, (shape.scale, shape.max_bias, shape.softcap))
        result = graph.op("ggml_flash_attn_ext", q, k, v, mask, *floats)
        if shape.has_sinks:
            call_ggml("ggml_flash_attn_ext_add_sinks", None, result, graph.floats(rows.sinks))
        return graph.computed(result, (n_rows, shape.n_heads, shape.length_v))


def slope(shape: Shape, head: int) -> float:
    """Source: ALiBi as ggml has it, for any number of heads."""
    if not shape.max_bias:
        return 1.0
    n_log2 = 2 ** int(math.log2(shape.n_heads))
    if head < n_log2:
        return float((2 ** (-shape.max_bias / n_log2)) ** (head + 1))
    return float((2 ** (-shape.max_bias / 2 / n_log2)) ** (2 * (head - n_log2) + 1))


def expected(shape: Shape, rows: Rows) -> NDArray[np.float64]:
    n_rows = rows.q.shape[1]
    found = np.zeros((n_rows, shape.n_heads, shape.length_v))
    for head in range(shape.n_heads):
        kv_head = head // (shape.n_heads // shape.n_heads_kv)
        scores = rows.q[head].astype(np.float64) @ rows.k[kv_head].astype(np.float64).T * shape.scale
        if shape.softcap:
            scores = shape.softcap * np.tanh(scores / shape.softcap)
        scores = scores + slope(shape, head) * rows.mask.astype(np.float64)
        for row in range(n_rows):
            if np.isneginf(scores[row]).all():
                continue
            sink = float(rows.sinks[head]) if shape.has_sinks else -np.inf
            most = max(scores[row].max(), sink)
            weights = np.exp(scores[row] - most)
            total = weights.sum() + np.exp(sink - most)
            found[row, head] = weights / total @ rows.v[kv_head].astype(np.float64)
    return found


def causal(n_rows: int, n_cells: int, window: int | None = None) -> NDArray[np.float64]:
    """The last rows of a text of n cells."""
    positions, cells = np.arange(n_cells - n_rows, n_cells)[:, None], np.arange(n_cells)
    return np.where((cells <= positions) & (cells > positions - (window or n_cells)), 0.0, -np.inf)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(n_heads=4, n_heads_kv=4),
        Shape(n_heads=12, n_heads_kv=1),
        Shape(n_heads=7, n_heads_kv=1, length_k=128, length_v=128),
        Shape(n_heads=64, n_heads_kv=1, length_k=80, length_v=80),
        Shape(length_k=192, length_v=128),
        Shape(n_heads=4, n_heads_kv=1, length_k=576, length_v=512),
        Shape(max_bias=8.0),
        Shape(softcap=5.0),
        Shape(has_sinks=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("n_rows", "n_cells"), [(1, 1), (1, 300), (3, 64), (40, 40), (70, 256)])
def test_it_is_attention(shape: Shape, n_rows: int, n_cells: int) -> None:
    rows = rows_of(shape, causal(n_rows, n_cells))
    assert np.allclose(attention(shape, rows), expected(shape, rows), atol=2e-3)


CHANCE = np.random.default_rng(3)
ADDING = np.where(CHANCE.random((20, 100)) < 0.5, CHANCE.normal(0, 1, (20, 100)), -np.inf)


@pytest.mark.parametrize("mask", [ADDING, *(causal(30, 200, length) for length in (1, 10, 64, 100))])
def test_a_mask_may_add_to_what_a_row_sees_or_be_a_window(mask: NDArray[np.float64]) -> None:
    rows = rows_of(Shape(), mask)
    assert np.allclose(attention(Shape(), rows), expected(Shape(), rows), atol=2e-3)


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_what_is_no_number_reaches_those_alone_that_see_it(odd: float) -> None:
    rows = rows_of(Shape(), causal(6, 6))
    sane = attention(Shape(), rows)
    rows.v[:, 4] = odd
    found = attention(Shape(), rows)
    assert np.array_equal(found[:4], sane[:4])
    assert not np.isfinite(found[4:]).any()


def test_scores_of_no_size_leave_other_rows_and_heads_alone() -> None:
    """An infinite q makes all that its row sees of one head weigh nothing."""
    shape = Shape(n_heads=2, n_heads_kv=1)
    rows = rows_of(shape, causal(2, 2))
    rows.k[:] = np.abs(rows.k)
    same = attention(shape, rows)
    rows.q[1, 1] = -np.inf
    found = attention(shape, rows)
    assert np.array_equal(found[0], same[0])
    assert np.array_equal(found[1, 0], same[1, 0])


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_row_that_sees_some_of_what_the_next_one_does_is_computed_alone(n_threads: int) -> None:
    """The next one sees cells between its own and behind them: what the first one sees is no beginning of that."""
    mask = np.full((2, 96), -np.inf)
    mask[:, :32] = 0.0
    mask[0, 34:53] = 0.0
    mask[1, 32:58] = 0.0
    rows = rows_of(Shape(), mask)
    lone = Rows(rows.q[:, :1], rows.k, rows.v, rows.mask[:1], rows.sinks)
    assert np.array_equal(attention(Shape(), rows, n_threads)[0], attention(Shape(), lone)[0])


def test_a_row_that_sees_nothing_is_zero_and_what_is_no_number_stays_unseen() -> None:
    mask = causal(5, 40)
    mask[2] = -np.inf
    mask[:, 7] = -np.inf
    rows = rows_of(Shape(), mask)
    rows.k[:, 7] = np.nan
    found = attention(Shape(), rows)
    assert not found[2].any()
    assert np.isfinite(found).all()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    n_rows=st.integers(1, 30),
    length=st.sampled_from([None, 20]),
    n_threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_has_the_same_bits_under_any_load(
    lengths: list[int], n_rows: int, length: int | None, n_threads: int, seed: int
) -> None:
    """Sequences whose cells lie between each other's, each in its own order, and whose rows share a step."""
    shape = Shape()
    chance = np.random.default_rng(seed)
    owners = chance.permutation(np.repeat(np.arange(len(lengths)), lengths))
    masks = [causal(min(n_rows, n), n, length) for n in lengths]
    alone = [rows_of(shape, mask, seed=number) for number, mask in enumerate(masks)]
    cells: list[Cells] = [np.flatnonzero(owners == number) for number in range(len(lengths))]
    starts = np.cumsum([0, *(each.q.shape[1] for each in alone)])
    mask = np.full((starts[-1], len(owners)), -np.inf)
    k = np.zeros((shape.n_heads_kv, len(owners), shape.length_k), np.float16)
    v = np.zeros((shape.n_heads_kv, len(owners), shape.length_v), np.float16)
    for start, each, own in zip(starts, alone, cells, strict=False):
        mask[start : start + each.q.shape[1], own] = each.mask
        k[:, own], v[:, own] = each.k, each.v
    q = np.concatenate([each.q for each in alone], axis=1)
    together = attention(shape, Rows(q, k, v, mask.astype(np.float16), alone[0].sinks), n_threads)
    for start, each in zip(starts, alone, strict=False):
        for row in range(each.q.shape[1]):
            lone = Rows(each.q[:, row : row + 1], each.k, each.v, each.mask[row : row + 1], each.sinks)
            assert np.array_equal(together[start + row], attention(shape, lone)[0])
