"""llama.cpp's sampler chains against the real library: who owns what, what is refused, how a row is filled in."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from tests.llama.conftest import slice_of
from tools.bench.llama.chain import Chain, Stage, dist, greedy, temp, top_p
from worker.llama.context import Context
from worker.llama.model import Model
from worker.wire.jobs import TokenId


def row(*logits: float) -> NDArray[np.float32]:
    return np.array(logits, dtype=np.float32)


class CountedStage:
    """A sampler that does nothing but count how often it is freed."""

    def __init__(self) -> None:
        self.n_freed = 0
        # Kept here: the library calls them as long as the sampler lives.
        self._callbacks = capi.llama_sampler_i(
            apply=capi.llama_sampler_i_apply(lambda _sampler, _candidates: None),
            free=capi.llama_sampler_i_free(self._count),
        )

    def _count(self, _: Any) -> None:
        self.n_freed += 1

    def __call__(self) -> Any:
        return capi.llama_sampler_init(ctypes.byref(self._callbacks), None)


# ── what it selects ──────────────────────────────────────────────────────────────────────────────


def test_greedy_selects_the_highest_logit() -> None:
    with Chain(3, [], greedy) as chain:
        assert [chain.sample(row(0, 2, 1)), chain.sample(row(5, 2, 1)), chain.sample(row(0, 2, 7))] == [1, 0, 2]


def test_every_row_is_fresh_though_the_one_before_was_sorted_and_cut() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (50, 2000)).astype(np.float32)
    with Chain(2000, [temp(0.1), top_p(0.0)], dist(1)) as chain:
        assert [chain.sample(each) for each in logits] == logits.argmax(axis=1).tolist()


def test_a_seed_repeats_its_draws_and_another_gives_others() -> None:
    flat = np.zeros(1000, dtype=np.float32)

    def drawn(seed: int) -> list[TokenId]:
        with Chain(1000, [], dist(seed)) as chain:
            return [chain.sample(flat) for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("stages", [[], [temp(0.8), top_p(0.95)], [top_p(0.95), temp(0.8)]])
def test_a_row_given_is_sampled_like_the_same_row_in_a_context(tiny: Model, stages: list[Stage]) -> None:
    """The library's own llama_sampler_sample, on logits that are written where it reads them."""
    n_vocab = tiny.n_vocab
    context = Context(tiny, n_ctx=256, n_batch=8, n_ubatch=8, n_seq_max=1, n_threads=1, n_threads_batch=1)
    (index,) = context.decode([slice_of(0, 0, [TokenId(1)])])
    theirs = np.ctypeslib.as_array(capi.llama_get_logits_ith(context.handle, index), shape=(n_vocab,))
    chance = np.random.default_rng(0)
    with Chain(n_vocab, stages, dist(7)) as given, Chain(n_vocab, stages, dist(7)) as in_place:
        for _ in range(50):
            theirs[:] = chance.normal(0, 2, n_vocab)
            assert given.sample(context.rows()[0]) == in_place.sample_output(context, index)


# ── who owns what ────────────────────────────────────────────────────────────────────────────────


def test_closing_frees_each_sampler_once() -> None:
    stages = [CountedStage(), CountedStage()]
    chain = Chain(3, stages)
    assert [stage.n_freed for stage in stages] == [0, 0]
    chain.close()
    chain.close()
    assert [stage.n_freed for stage in stages] == [1, 1]


@pytest.mark.parametrize("use", [lambda c: c.sample(row(1)), lambda c: c.apply(row(1)), lambda c: c.accept(TokenId(0))])
def test_a_closed_chain_refuses(use: Callable[[Chain], object]) -> None:
    with Chain(1, [], greedy) as chain:
        pass
    with pytest.raises(ValueError, match="closed"):
        use(chain)


def test_a_stage_that_fails_frees_those_before_it() -> None:
    def failing() -> Any:
        raise RuntimeError("no sampler today")

    before = CountedStage()
    with pytest.raises(RuntimeError, match="today"):
        Chain(3, [before, failing])
    assert before.n_freed == 1


def test_a_stage_that_makes_no_sampler_is_refused() -> None:
    """NULL, which a bad grammar gives; in a chain it would be a segfault."""
    before = CountedStage()
    with pytest.raises(ValueError, match="no sampler"):
        Chain(3, [before, ctypes.POINTER(capi.llama_sampler)])
    assert before.n_freed == 1


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("logits", [row(1, 2), row(1, 2, 3, 4), np.zeros(3), np.zeros((3, 1), dtype=np.float32)])
def test_logits_of_another_shape_or_type_are_refused(logits: Any) -> None:
    with Chain(3, [], greedy) as chain, pytest.raises(ValueError, match=r"not float32\[3\]"):
        chain.sample(logits)


def test_a_chain_without_a_selection_selects_nothing(tiny: Model) -> None:
    """The library itself would abort."""
    context = Context(tiny, n_ctx=256, n_batch=8, n_ubatch=8, n_seq_max=1, n_threads=1, n_threads_batch=1)
    (index,) = context.decode([slice_of(0, 0, [TokenId(1)])])
    with Chain(tiny.n_vocab, [temp(0.8)]) as chain:
        with pytest.raises(ValueError, match="no selection"):
            chain.sample(context.rows()[0])
        with pytest.raises(ValueError, match="no selection"):
            chain.sample_output(context, index)
