"""The warm-up chooses shapes within their limits, in little time, and leaves no trace."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llama.conftest import context_on
from worker.engine.step import Step
from worker.llama import warm_up as warm_up_module
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.seq_ids import SeqIds
from worker.llama.warm_up import (
    MAX_DEAD_COST,
    MAX_PADDED,
    WIDTHS,
    Shapes,
    chunk_within,
    padded_costs,
    padded_widths_of,
    retention_of,
    row_costs_of,
    switch_s_of,
    warm_up,
    widest_within,
)
from worker.models.plan.memory import DETERMINISTIC_CHUNK

FAST, SLOW = 1e9, 0.0
"""A target that every step keeps, and one that none does."""


def runner_of(tiny: Model, n_ubatch: int = 512, n_ctx: int = 1024, n_slots: int = 2) -> LlamaRunner:
    return LlamaRunner(tiny, context_on(tiny, n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch, n_seq_max=n_slots))


def warmed(runner: LlamaRunner, *, target_s: float = FAST, **changes: Any) -> Shapes:
    """The shapes; the memory is empty."""
    asked: dict[str, Any] = {"is_deterministic": False, "wants_drafts": True, **changes}
    shapes = warm_up(runner, target_s=target_s, **asked)
    assert runner.kv.n_cells_used == 0
    return shapes


@pytest.mark.parametrize(
    ("target_s", "n_ubatch", "n_ctx", "chunk"),
    [
        (FAST, 512, 1024, 512),
        (FAST, 100, 1024, 64),
        (FAST, 512, 256, 256),
        (FAST, 2048, 4096, 512),
        (math.inf, 512, 1024, 512),
        (SLOW, 512, 1024, 16),
    ],
)
def test_the_chunk_is_the_largest_that_keeps_the_target_within_a_micro_batch(
    tiny: Model, target_s: float, n_ubatch: int, n_ctx: int, chunk: int
) -> None:
    assert warmed(runner_of(tiny, n_ubatch, n_ctx), target_s=target_s).chunk == chunk


@pytest.mark.parametrize("disturbed", [(), (64,), (256,), (512,)])
@pytest.mark.parametrize(
    ("first_s", "token_s", "chunk"), [(0.002, 0.0004, 256), (0.05, 0.003, 32), (0.0, 0.0001, 512), (0.2, 0.01, 16)]
)
def test_the_chunk_is_found_with_no_step_far_beyond_the_target_and_next_to_others(
    first_s: float, token_s: float, chunk: int, disturbed: tuple[int, ...]
) -> None:
    """`disturbed`: steps that take half as long again when they are run for the first time."""
    tried: list[int] = []

    def step_s(n_tokens: int) -> float:
        tried.append(n_tokens)
        seconds = first_s + token_s * n_tokens
        return 1.5 * seconds if n_tokens in disturbed and tried.count(n_tokens) == 1 else seconds

    found, seconds = chunk_within(0.150, 512, step_s)
    assert (found, seconds) == (chunk, first_s + token_s * chunk)
    assert tried == sorted(tried)
    assert len(tried) <= len(set(tried)) + 1
    assert max(tried) <= 2 * chunk


@pytest.mark.parametrize("target_s", [FAST, SLOW])
@pytest.mark.parametrize(("n_ubatch", "chunk"), [(512, DETERMINISTIC_CHUNK), (64, 64), (40, 40)])
def test_a_fixed_chunk_depends_on_no_time(tiny: Model, target_s: float, n_ubatch: int, chunk: int) -> None:
    shapes = warmed(runner_of(tiny, n_ubatch), target_s=target_s, is_deterministic=True)
    assert shapes == Shapes(chunk, shapes.chunk_s, (), n_ubatch)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_given_chunk_is_kept_and_measured(tiny: Model, *, is_deterministic: bool) -> None:
    shapes = warmed(runner_of(tiny), chunk=48, is_deterministic=is_deterministic)
    assert shapes.chunk == 48
    assert shapes.chunk_s > 0


@pytest.mark.parametrize(("target_s", "n_slots", "widest"), [(FAST, 16, 32), (FAST, 1, 32), (SLOW, 16, 16)])
def test_steps_of_every_width_are_measured_where_tokens_will_be_drafted(
    tiny: Model, target_s: float, n_slots: int, widest: int
) -> None:
    """The widths are those that a prefill step that delays others, and a step with drafts, may have."""
    shapes = warmed(runner_of(tiny, n_slots=n_slots), target_s=target_s)
    assert tuple(width for width, _ in shapes.row_costs) == (*(width for width in WIDTHS if width < widest), widest)
    assert all(cost_s > 0 for _, cost_s in shapes.row_costs)


def test_nothing_is_measured_where_nothing_will_be_drafted(tiny: Model) -> None:
    runner = runner_of(tiny)
    assert warmed(runner, wants_drafts=False).row_costs == ()
    runner.kv.seq_ids = SeqIds(runner.kv.seq_ids.n_slots)
    assert warmed(runner).row_costs == ()


def test_what_a_predecessor_measured_is_kept(tiny: Model) -> None:
    runner, costs = runner_of(tiny), ((1, 0.25), (64, 0.5))
    shapes = warmed(runner, chunk=32, row_costs=costs)
    assert (shapes.chunk, shapes.row_costs) == (32, costs)
    fixed = warmed(runner, row_costs=costs, is_deterministic=True)
    assert fixed.row_costs == (), "draft tokens have no place in fixed chunks"


def test_logits_that_are_no_numbers_do_not_stop_the_warm_up(model_of_nan: Model) -> None:
    assert warmed(runner_of(model_of_nan)).chunk == 512


H100 = ((1, 3.22), (2, 4.23), (4, 5.62), (5, 5.99), (6, 6.59), (7, 7.19), (8, 7.83), (9, 6.63), (12, 6.95), (16, 7.36))
"""Milliseconds of an H100's decode steps of a 7B model: docs/device-checks."""


def test_steps_of_seven_and_eight_rows_are_filled_up_on_an_h100() -> None:
    padded = padded_widths_of(H100)
    assert padded == ((7, 9), (8, 9))
    assert padded_costs(H100, padded) == (*H100[:5], (7, 6.63), (8, 6.63), *H100[7:])


@given(times=st.lists(st.floats(0.1, 10), min_size=1, max_size=16))
def test_a_width_is_filled_up_only_to_one_that_takes_less(times: list[float]) -> None:
    measured = tuple(enumerate(times, 1))
    padded = dict(padded_widths_of(measured))
    costs = dict(padded_costs(measured, tuple(padded.items())))
    for width, taken_s in measured:
        assert width <= padded.get(width, width) <= width + MAX_PADDED
        assert costs[width] == times[padded.get(width, width) - 1] <= taken_s
    assert len(costs) == len(times)


@given(
    token_s=st.lists(st.floats(1e-6, 1e-2), min_size=4, max_size=4),
    n_most=st.sampled_from((64, 512, 1000, 1024, 2048)),
    max_s=st.sampled_from((1e-3, 0.6, math.inf)),
)
def test_prefill_steps_are_as_wide_as_each_token_takes_no_longer(
    token_s: list[float], n_most: int, max_s: float
) -> None:
    each_s = dict(zip((64, 512, 1024, 2048), token_s, strict=True))
    found = widest_within(max_s, n_most, lambda size: size * each_s.get(size, 1.0))
    assert min(512, n_most) <= found <= n_most
    sizes = [size for size in (512, 1024, 2048) if size <= found]
    assert all(each_s[wider] <= 1.05 * each_s[size] * (1 + 1e-9) for size, wider in pairwise(sizes))
    assert found <= 512 or found * each_s[found] <= 1.05 * max_s * (1 + 1e-9)


class Gpu:
    """A runner on a device whose times are known, and the clock that they pass on.

    A step takes a second for each token, and `change_s` more if it has another width than the one before, as a graph is
    built anew; the first one of a width takes `first_s` more, as kernels are loaded. Next to cells of another slot a
    step takes `dead_s` more for each of them.
    """

    is_gpu, kind, n_vocab = True, "gpu", 1000

    def __init__(self, n_ctx: int = 4096, **costs: float) -> None:
        self.now_s, self.n_ctx = 0.0, n_ctx
        names = ("first_s", "change_s", "dead_s", "save_s", "load_s")
        self.first_s, self.change_s, self.dead_s, self.save_s, self.load_s = (costs.get(name, 0.0) for name in names)
        self.model = self.device = self.kv = self.context = self
        self._seen: set[int] = set()
        self._width = self._n_dead = 0

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, step: Step) -> None:
        n_tokens = step.n_tokens
        self.now_s += n_tokens + self.dead_s * self._n_dead
        self.now_s += self.first_s * (n_tokens not in self._seen) + self.change_s * (n_tokens != self._width)
        self._seen.add(n_tokens)
        self._width = n_tokens
        (slice_,) = step.slices
        if slice_.slot == 1:
            self._n_dead += n_tokens

    def clear(self) -> None:
        self._n_dead = 0

    def trim(self, slot: int, _: int) -> None:
        if slot == 1:
            self._n_dead = 0

    def save(self, *_: object) -> None:
        self.now_s += self.save_s

    def load(self, *_: object) -> None:
        self.now_s += self.load_s


@contextmanager
def on(gpu: Gpu) -> Iterator[LlamaRunner]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warm_up_module, "time", gpu)
        patched.setattr(warm_up_module, "_ROW_COSTS_S", math.inf)
        yield cast(LlamaRunner, gpu)


@given(first_s=st.floats(0, 1e3), change_s=st.floats(0, 1e3))
def test_on_a_gpu_a_width_costs_what_its_steps_in_a_row_take_and_a_change_what_leaving_it_and_coming_back_do(
    first_s: float, change_s: float
) -> None:
    """The least of three counts, because the first step of a width loads kernels and the next captures a graph."""
    with on(Gpu(first_s=first_s, change_s=change_s)) as runner:
        costs = row_costs_of(runner)
        assert dict(costs) == {width: pytest.approx(width) for width in (*range(1, 13), 16, 24, 32)}
        assert switch_s_of(runner, costs) == pytest.approx(2 * change_s, abs=1e-6)
        assert switch_s_of(runner, costs[:1]) == 0.0, "only one width was measured"


@given(load_s=st.floats(0, 3000), save_s=st.floats(0, 3000))
def test_copies_are_worthwhile_where_loading_one_takes_less_than_reading_its_tokens(
    load_s: float, save_s: float
) -> None:
    """A copy out does not count, because it is made while nothing runs."""
    with on(Gpu(load_s=load_s, save_s=save_s)) as runner:
        assert retention_of(runner, 256).is_copying_worthwhile == (load_s < 1024)


@given(dead_s=st.floats(1e-7, 1e-1), n_ctx=st.sampled_from((2048, 4096, 16_384)))
def test_as_many_cells_of_finished_jobs_stay_as_cost_a_step_of_one_token_two_hundredths(
    dead_s: float, n_ctx: int
) -> None:
    expected = min(max(256, MAX_DEAD_COST / dead_s), n_ctx // 2)
    with on(Gpu(dead_s=dead_s, n_ctx=n_ctx)) as runner:
        assert retention_of(runner, 256).max_dead_cells == pytest.approx(expected, rel=1e-3, abs=1)
