"""A plan keeps what was asked for, and the rest follows from the model, the slots and what is free."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.loading.test_load import configuration
from tests.models.plan.rehearsed import CELL_BYTES, MIB, STATE_BYTES, dry_run, info
from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory
from worker.models.plan.devices import Device
from worker.models.plan.memory import (
    DEFAULT_PARALLEL,
    MAX_STRIDE,
    MIN_STRIDE,
    MIN_WANTED_CELLS,
    Need,
    Plan,
    checkpoint_stride,
    largest,
    most_useful_cells,
    plan_of,
    prefix_cache_bytes,
    snapshot_bytes,
)
from worker.models.plan.placement import Group
from worker.models.upstream.numbers import CELL_STEP

CPU = Device("CPU", "a processor", "cpu", "cpu", 0, 1 << 45, 1 << 45, 99)


def config(ctx_size: int = 0, parallel: int = 0, **changes: object) -> Configure:
    return configuration(info().path, **{"ctx_size": ctx_size, "parallel": parallel, "ubatch_size": 0, **changes})


def planned(ctx_size: int = 1024, architecture: str = "llama", **changes: int) -> tuple[Plan, Need]:
    model = replace(info(), architecture=architecture)
    plan = replace(plan_of(config(ctx_size), model, ctx_size), **changes)  # type: ignore[arg-type]  # numbers alone
    return plan, dry_run(config(), model, Group((CPU,), ()), 0, plan)


@pytest.mark.parametrize(
    ("trained", "parallel", "n_cells"),
    [
        *((512, 0, 8 * 512), (512, 2, 1024), (8192, 1, 8192), (1000, 1, 768), (100, 1, CELL_STEP)),
        *((8192, 2, 16_384), (8192, 0, MIN_WANTED_CELLS), (16_384, 0, 16_384), (131_072, 0, 131_072)),
        (40_000, 1, 39_936),
    ],
)
def test_the_default_context_holds_the_trained_length_and_is_at_most_parallel_times_that(
    trained: int, parallel: int, n_cells: int
) -> None:
    asked = config(parallel=parallel)
    assert most_useful_cells(asked, info(trained)) == n_cells
    assert plan_of(asked, info(trained), n_cells).context_length == min(n_cells, trained)


@pytest.mark.parametrize(("n_cells", "parallel"), [(8192, 8), (2048, 8), (1024, 4), (512, 2), (256, 1)])
def test_few_cells_that_were_not_asked_for_are_few_slots(n_cells: int, parallel: int) -> None:
    assert plan_of(config(), info(), n_cells).parallel == parallel
    assert plan_of(config(parallel=8), info(), n_cells).parallel == 8, "they were asked for"


@pytest.mark.parametrize(
    ("ctx_size", "slots"), [(1, 1), (33, 1), (34, 2), (135, 7), (136, 8), (100_000, DEFAULT_PARALLEL)]
)
def test_an_asked_for_context_has_no_more_slots_than_can_ever_run_over_it(ctx_size: int, slots: int) -> None:
    plan = plan_of(config(ctx_size), info(), ctx_size)
    assert (plan.n_cells, plan.parallel, plan.context_length) == (ctx_size, slots, min(ctx_size, 8192))


def test_a_fixed_chunk_has_a_row_of_logits_for_each_token_and_cells_for_rows_that_fill_a_step_up() -> None:
    free, fixed = (plan_of(config(1024, deterministic=is_fixed), info(), 1024) for is_fixed in (False, True))
    assert (free.n_chunk_rows, free.n_padded_cells) == (0, 1024)
    assert (fixed.n_chunk_rows, fixed.n_padded_cells) == (64, 1024 + CELL_STEP)


@given(most=st.integers(1, 100_000), limit=st.integers(-1, 120_000))
def test_the_largest_number_that_suits_is_found_in_steps(most: int, limit: int) -> None:
    found = largest(most, lambda n_cells: n_cells <= limit)
    assert found == (most if most <= limit else max(0, limit) // CELL_STEP * CELL_STEP)


# ── what finished jobs leave ──────────────────────────────────────────────────────────────────────


def test_finished_jobs_may_leave_as_much_as_the_kv_cache_but_half_of_what_is_left_at_most() -> None:
    plan, need = planned()
    assert need.kv_bytes == 4 * 1024 * CELL_BYTES
    assert prefix_cache_bytes(-1, plan, need, 1 << 40) == need.kv_bytes
    assert prefix_cache_bytes(-1, plan, need, 2 * need.kv_bytes) == need.kv_bytes
    assert prefix_cache_bytes(-1, plan, need, need.kv_bytes) == need.kv_bytes // 2
    assert prefix_cache_bytes(-1, plan, need, -1) == 0


def test_recurrent_states_have_room_beside_cells_and_snapshots_none() -> None:
    plan, need = planned(architecture="lfm2", n_snapshots=3)
    assert snapshot_bytes(plan, need) == 3 * 10 * STATE_BYTES
    assert prefix_cache_bytes(-1, plan, need, 1 << 40) == 4 * 1024 * CELL_BYTES + (10 + 4 * 8) * STATE_BYTES


@pytest.mark.parametrize("asked", [0, 1, 100 * MIB])
def test_an_asked_for_prefix_cache_is_kept_while_there_is_memory_for_it(asked: int) -> None:
    assert prefix_cache_bytes(asked, *planned(), 100 * MIB) == asked


@pytest.mark.parametrize("left_bytes", [-5 * MIB, 0, 99 * MIB, 100 * MIB - 1])
def test_a_prefix_cache_beyond_memory_is_refused_with_the_most_there_can_be(left_bytes: int) -> None:
    with pytest.raises(InsufficientMemory) as caught:
        prefix_cache_bytes(100 * MIB, *planned(), left_bytes)
    most = max(0, left_bytes) // MIB
    assert str(caught.value).startswith(
        f"--prefix-cache-mb 100 is more than the {most} MiB of main memory that the model "
    )
    assert str(caught.value).endswith(f"give at most {most}, or remove the flag")
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (100 * MIB, max(0, left_bytes))


@pytest.mark.parametrize(
    ("state_bytes", "stride"),
    [(0, 0), (1, MIN_STRIDE), (4 * CELL_BYTES * 1000, 1024), (4 * CELL_BYTES * 1025, 2048), (1 << 40, MAX_STRIDE)],
)
def test_the_states_of_a_long_prompt_take_no_more_than_its_cells(state_bytes: int, stride: int) -> None:
    plan, need = planned()
    assert checkpoint_stride(plan, replace(need, checkpoint_bytes=state_bytes)) == stride


def test_a_model_without_cells_keeps_states_far_apart() -> None:
    plan, _ = planned()
    assert checkpoint_stride(plan, Need(replace(planned()[1].buffers, buffers=()), 10**6)) == MAX_STRIDE
