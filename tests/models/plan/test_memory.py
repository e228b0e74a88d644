"""A plan keeps what was asked for, and the rest follows from the model, the slots and what is free."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.loading.test_load import configuration
from tests.models.plan.rehearsed import CELL_BYTES, MIB, STATE_BYTES, dry_run, info, layered
from worker.config.engine_settings import Configure
from worker.errors import InsufficientMemory
from worker.models.facts.gguf import Tensor
from worker.models.plan.buffers import Buffer, BufferSizes
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
from worker.models.plan.placement import Group, InMain, Share, spread
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


FILE = layered(n_blocks=4)
"""4210 MiB, 1000 of them an embedding."""


def buffers(*sizes: tuple[str, str, int]) -> BufferSizes:
    return BufferSizes(tuple(Buffer(name, kind, n * MIB) for name, kind, n in sizes))


def part(weights: int = 0, kv: int = 0, compute: int = 0) -> Share:
    return Share(weights * MIB, kv * MIB, compute * MIB)


def test_without_gpus_all_is_in_main_memory() -> None:
    found = buffers(
        ("CPU", "model", 4210), ("CPU", "KV", 7), ("CPU", "RS", 2), ("CPU", "compute", 5), ("CPU", "output", 1)
    )
    in_main, host, gpus = spread(FILE, found, ())
    assert (host, gpus) == (part(4210, 9, 6), ())
    assert (in_main.as_in_file, in_main.repacked, in_main.is_mapped) == (4210 * MIB, 0, True)


def test_each_gpu_has_its_buffers_and_main_memory_those_that_gpus_read_there() -> None:
    found = buffers(
        *(("CUDA0", "model", 1200), ("CUDA1", "model", 2010), ("CUDA_Host", "model", 1000)),
        *(("CUDA0", "KV", 3), ("CUDA1", "KV", 4), ("CUDA0", "compute", 10), ("CUDA_Host", "compute", 2)),
    )
    in_main, host, gpus = spread(FILE, found, ("CUDA0", "CUDA1"))
    assert (host, gpus) == (part(1000, 0, 2), (part(1200, 3, 10), part(2010, 4)))
    assert in_main.as_in_file == 1000 * MIB


@pytest.mark.parametrize(("repacked", "is_mapped"), [(400, True), (500, False), (4000, False)])
def test_weights_are_there_once_where_the_file_is_read_and_twice_in_part_where_it_is_mapped(
    repacked: int, is_mapped: bool
) -> None:
    found = buffers(("CPU", "model", 4210 - repacked), ("CPU_REPACK", "model", repacked))
    in_main, host, _ = spread(FILE, found, ())
    assert in_main == InMain((4210 - repacked) * MIB, repacked * MIB, repacked * MIB)
    assert in_main.is_mapped is is_mapped
    assert host == part(4210 + (repacked if is_mapped else 0))


def test_an_embedding_that_is_the_output_too_is_there_once_more_repacked_and_leaves_nothing_in_the_file() -> None:
    tied = layered(n_blocks=4, has_output=False)
    found = buffers(("CPU", "model", 2210), ("CPU_REPACK", "model", 1000))
    in_main, host, _ = spread(tied, found, ())
    assert (in_main.left_in_file, in_main.is_mapped, host) == (0, True, part(3210))


def test_on_a_gpu_it_counts_as_no_part_of_the_file() -> None:
    tied = layered(n_blocks=4, has_output=False)
    found = buffers(("MTL0", "model", 10 + 1000 + 300), ("CPU", "model", 1000), ("CPU_REPACK", "model", 900))
    in_main, _, _ = spread(tied, found, ("MTL0",))
    assert in_main.left_in_file == 900 * MIB


def test_a_file_that_ggml_cannot_map_is_read() -> None:
    found = buffers(("CPU", "model", 4210))
    assert not spread(replace(FILE, alignment=8), found, ())[0].is_mapped


# ── what layers compute with ─────────────────────────────────────────────────────────────────────


def test_a_tied_embedding_is_one_of_the_tensors_of_layers_and_another_is_not() -> None:
    names = {tensor.name for tensor in FILE.layer_tensors}
    assert names == {tensor.name for tensor in FILE.tensors} - {"token_embd.weight"}
    tied = layered(n_blocks=4, has_output=False)
    assert tied.layer_tensors == tied.tensors
    assert (tied.tied_bytes, FILE.tied_bytes) == (1000 * MIB, 0)


def test_blocks_that_guess_further_tokens_are_no_part_of_it_unless_they_are_to_be_loaded() -> None:
    guessing = replace(info(), n_mtp_blocks=1, tensors=(Tensor("blk.3.nextn.weight", (8,), "F32", 32),))
    assert guessing.layer_tensors == ()
    assert len(replace(guessing, loads_heads=True).layer_tensors) == 1
