"""The warm-up chooses shapes within their limits, in little time, and leaves no trace."""

import math
from typing import cast

import pytest

from worker.llama.context import Context
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.warm_up import WIDTHS, Shapes, chunk_within, switch_s_of, warm_up
from worker.model.memory import DETERMINISTIC_CHUNK

FAST, SLOW = 1e9, 0.0
"""A target that every step keeps, and one that none does."""


def runner_of(tiny: Model, n_ubatch: int = 512, n_ctx: int = 1024, n_slots: int = 2) -> LlamaRunner:
    context = Context(
        tiny, n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch, n_seq_max=n_slots, n_threads=1, n_threads_batch=1
    )
    return LlamaRunner(tiny, context)


def warmed(
    runner: LlamaRunner,
    *,
    chunk: int = 0,
    target_s: float = FAST,
    is_deterministic: bool = False,
    looks_up: bool = True,
) -> Shapes:
    """The shapes; the memory is empty."""
    shapes = warm_up(runner, chunk=chunk, target_s=target_s, is_deterministic=is_deterministic, wants_drafts=looks_up)
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
def test_the_chunk_is_found_with_no_step_far_beyond_the_target_and_beside_others(
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
    assert shapes == Shapes(chunk, shapes.chunk_s, ())


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_given_chunk_is_kept(tiny: Model, *, is_deterministic: bool) -> None:
    assert warmed(runner_of(tiny), chunk=48, is_deterministic=is_deterministic).chunk == 48


@pytest.mark.parametrize("chunk", [0, 64])
def test_what_a_step_of_the_chunk_takes_is_measured_also_when_the_chunk_is_given(tiny: Model, chunk: int) -> None:
    assert warmed(runner_of(tiny), chunk=chunk).chunk_s > 0


@pytest.mark.parametrize(("target_s", "n_slots", "widest"), [(FAST, 16, 32), (FAST, 1, 32), (SLOW, 16, 16)])
def test_steps_of_every_width_are_measured_where_tokens_will_be_guessed(
    tiny: Model, target_s: float, n_slots: int, widest: int
) -> None:
    """As wide as a prefill step that holds up others may be, and as a step with drafts may be."""
    shapes = warmed(runner_of(tiny, n_slots=n_slots), target_s=target_s)
    assert tuple(width for width, _ in shapes.row_costs) == (*(width for width in WIDTHS if width < widest), widest)
    assert all(cost_s > 0 for _, cost_s in shapes.row_costs)


def test_nothing_is_measured_where_nothing_will_be_guessed(tiny: Model) -> None:
    runner = runner_of(tiny)
    assert warmed(runner, looks_up=False).row_costs == ()
    runner.kv.seq_ids = runner.kv.seq_ids.without_spares()
    assert warmed(runner).row_costs == ()


def test_what_a_predecessor_measured_is_kept(tiny: Model) -> None:
    runner, costs = runner_of(tiny), ((1, 0.25), (64, 0.5))
    shapes = warm_up(runner, chunk=32, row_costs=costs, target_s=FAST, is_deterministic=False, wants_drafts=True)
    assert (shapes.chunk, shapes.row_costs) == (32, costs)
    fixed = warm_up(runner, row_costs=costs, target_s=FAST, is_deterministic=True, wants_drafts=True)
    assert fixed.row_costs == (), "guessed tokens have no place in fixed chunks"


def test_logits_that_are_no_numbers_do_not_stop_the_warm_up(model_of_nan: Model) -> None:
    assert warmed(runner_of(model_of_nan)).chunk == 512


class SlowGpu:
    """A runner whose steps are so slow that the warm-up has measured those of one token alone."""

    class model:  # noqa: N801 - an attribute's name
        class device:  # noqa: N801
            is_gpu = True


def test_a_change_of_width_costs_nothing_where_only_one_width_was_measured() -> None:
    assert switch_s_of(cast(LlamaRunner, SlowGpu()), ((1, 2.0),)) == 0.0
