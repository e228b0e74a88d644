"""A plan never exceeds what there is room for, never shrinks what was asked for, and what it advises fits."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.config.engine_settings import CACHE_TYPES
from worker.errors import InsufficientMemory
from worker.model.gguf import Tensor
from worker.model.info import ModelInfo
from worker.plan.memory import (
    DEFAULT_PARALLEL,
    KV_SHARE,
    MIN_WANTED_CELLS,
    Demand,
    Plan,
    kv_layer_bytes,
    max_cells,
    plan_memory,
    plan_of,
    prefix_cache_bytes,
    wanted_cells,
)
from worker.upstream.numbers import CELL_STEP

MIB = 2**20
WEIGHTS_BYTES = 90 * MIB
CELL_BYTES = 4 * 2 * (64 + 64) * 2
"""4 layers, 2 KV heads, K and V of 64 numbers, f16."""
NO_LIMIT_BYTES = 1 << 60


def info(trained: int = 8192, heads_kv: tuple[int, ...] = (2, 2, 2, 2), key_length: int = 64) -> ModelInfo:
    return ModelInfo(
        path=Path("m.gguf"),
        part_paths=(Path("m.gguf"),),
        file_bytes=WEIGHTS_BYTES + 1000,
        version=3,
        architecture="llama",
        name="m",
        quant_kind="Q4_1",
        context_length=trained,
        block_count=len(heads_kv),
        embedding_length=512,
        head_counts=tuple(4 for _ in heads_kv),
        head_counts_kv=heads_kv,
        key_length=key_length,
        value_length=64,
        experts_used=0,
        vocab_size=1000,
        tokenizer_model="gpt2",
        license=None,
        tensors=(Tensor("all", (WEIGHTS_BYTES,), "I8", WEIGHTS_BYTES),),
    )


def demand(ctx_size: int = 0, parallel: int = 0, ubatch_size: int = 512, *, has_flash_attention: bool = True) -> Demand:
    return Demand(
        ctx_size=ctx_size,
        parallel=parallel,
        cache_type_k="f16",
        cache_type_v="f16",
        ubatch_size=ubatch_size,
        has_flash_attention=has_flash_attention,
    )


def total_bytes(made: Plan) -> int:
    """Return the bytes of all that a plan takes, with the weights as the file has them."""
    return WEIGHTS_BYTES + made.kv_bytes + made.compute_bytes + made.output_bytes


def plan(model: ModelInfo, available_bytes: int = NO_LIMIT_BYTES, ctx_size: int = 0, parallel: int = 0) -> Plan:
    made = plan_memory(model, demand(ctx_size, parallel), lambda plan: total_bytes(plan) <= available_bytes)
    assert made is not None
    return made


def bytes_for(n_cells: int, parallel: int = 0) -> int:
    """Exactly what a plan of that many cells takes if they were not asked for."""
    return total_bytes(plan_of(info(), demand(parallel=parallel), n_cells))


def test_with_memory_to_spare_the_defaults_hold() -> None:
    made = plan(info())
    assert (made.n_cells, made.parallel, made.context_length) == (MIN_WANTED_CELLS, DEFAULT_PARALLEL, 8192)
    assert made.kv_bytes == MIN_WANTED_CELLS * CELL_BYTES


@pytest.mark.parametrize(
    ("trained", "parallel", "n_cells"),
    [
        *((512, 0, 8 * 512), (512, 2, 1024), (8192, 1, 8192), (1000, 1, 768), (100, 1, CELL_STEP)),
        *((8192, 2, 16_384), (16_384, 0, 16_384), (32_768, 0, 32_768), (131_072, 0, 131_072), (40_000, 1, 39_936)),
    ],
)
def test_the_default_context_holds_the_trained_length_and_is_at_most_parallel_times_that(
    trained: int, parallel: int, n_cells: int
) -> None:
    made = plan(info(trained), parallel=parallel)
    assert made.n_cells == n_cells
    assert made.context_length == min(n_cells, trained)


@given(
    free_bytes=st.integers(0, 4000 * MIB),
    parallel=st.integers(0, 256),
    trained=st.integers(1, 200_000),
    heads_kv=st.sampled_from([(2, 2, 2, 2), (0, 8), (0, 0)]),
)
def test_default_cells_take_a_part_of_the_free_memory_and_no_less_than_that(
    free_bytes: int, parallel: int, trained: int, heads_kv: tuple[int, ...]
) -> None:
    model, wish = info(trained, heads_kv), replace(demand(parallel=parallel), free_bytes=free_bytes)
    most = wanted_cells(model, replace(wish, free_bytes=None))
    found = wanted_cells(model, wish)
    assert CELL_STEP <= found <= most
    assert found == CELL_STEP or plan_of(model, wish, found).kv_bytes <= free_bytes // KV_SHARE
    assert found == most or plan_of(model, wish, found + CELL_STEP).kv_bytes > free_bytes // KV_SHARE
    for ctx_size in (1, found, most + 1):
        assert wanted_cells(model, replace(wish, ctx_size=ctx_size)) == ctx_size, "what is asked for is not cut"


def test_few_cells_are_few_slots_also_where_the_part_of_memory_is_what_limits_them() -> None:
    wish = replace(demand(), free_bytes=KV_SHARE * 1024 * CELL_BYTES)
    made = plan_memory(info(), wish, lambda _: True, min_cells=4096)
    assert made is not None, "layers stay where they are: there is room for more cells, and they are not wanted"
    assert (made.n_cells, made.parallel) == (1024, 4)


def test_a_fixed_chunk_has_a_row_of_logits_for_each_token() -> None:
    free, fixed = (plan_of(info(), replace(demand(), n_chunk_rows=n), 1024) for n in (0, 64))
    assert free.output_bytes < fixed.output_bytes == 64 * info().vocab_size * 4


def test_little_memory_shrinks_the_default_context_then_the_slots() -> None:
    for n_cells, parallel in ((8192, 8), (2048, 8), (1024, 4), (512, 2), (256, 1)):
        made = plan(info(), bytes_for(n_cells) + CELL_STEP * CELL_BYTES // 2)
        assert (made.n_cells, made.parallel) == (n_cells, parallel)


def test_asked_for_slots_are_kept_when_memory_is_little() -> None:
    made = plan(info(), bytes_for(512, parallel=8), parallel=8)
    assert (made.n_cells, made.parallel) == (512, 8)


def test_the_default_context_is_not_cut_below_the_least_that_is_wanted() -> None:
    room = bytes_for(2048)

    def fits(made: Plan) -> bool:
        return total_bytes(made) <= room

    for min_cells, is_kept in ((2048, True), (4096, False)):
        assert (plan_memory(info(), demand(), fits, min_cells=min_cells) is not None) == is_kept
    short = info(trained=100)
    assert plan_memory(short, demand(), fits, min_cells=4096) is not None, "it never wanted more"


@pytest.mark.parametrize("ctx_size", [1, 100, 256, 300, 20_000, 100_000])
def test_an_asked_for_context_is_kept_and_paid_for_as_llama_cpp_pads_it(ctx_size: int) -> None:
    made = plan(info(), ctx_size=ctx_size)
    assert (made.n_cells, made.context_length) == (ctx_size, min(ctx_size, 8192))
    padded = -(-ctx_size // CELL_STEP) * CELL_STEP
    assert made.kv_bytes == padded * CELL_BYTES


@pytest.mark.parametrize(
    ("ctx_size", "slots"), [(1, 1), (33, 1), (34, 2), (135, 7), (136, 8), (100_000, DEFAULT_PARALLEL)]
)
def test_an_asked_for_context_has_no_more_slots_than_can_ever_run_over_it(ctx_size: int, slots: int) -> None:
    """A job is admitted next to others with a token and a margin of 16 cells."""
    assert plan(info(), ctx_size=ctx_size).parallel == slots
    assert plan(info(), ctx_size=ctx_size, parallel=3).parallel == 3, "contradictions.py refuses what does not fit"


def test_what_does_not_fit_is_no_plan() -> None:
    asked = demand(ctx_size=4000)
    room = total_bytes(plan_of(info(), asked, 2048)) + 5
    assert plan_memory(info(), asked, lambda made: total_bytes(made) <= room) is None
    assert max_cells(info(), asked, lambda made: total_bytes(made) <= room) == 2048
    for wish in (demand(), demand(ctx_size=1)):
        assert plan_memory(info(), wish, lambda made: total_bytes(made) <= WEIGHTS_BYTES) is None
        assert max_cells(info(), wish, lambda made: total_bytes(made) <= WEIGHTS_BYTES) == 0


@given(
    available=st.integers(WEIGHTS_BYTES, WEIGHTS_BYTES + 400 * MIB),
    ctx_size=st.one_of(st.just(0), st.integers(1, 200_000)),
    parallel=st.integers(0, 256),
    trained=st.integers(1, 200_000),
    ubatch_size=st.sampled_from([1, 64, 512, 2048]),
)
def test_a_plan_fits_or_the_largest_context_that_does_is_known(
    available: int, ctx_size: int, parallel: int, trained: int, ubatch_size: int
) -> None:
    model, wish = info(trained), demand(ctx_size, parallel, ubatch_size)

    def fits(made: Plan) -> bool:
        return total_bytes(made) <= available

    made = plan_memory(model, wish, fits)
    if made is None:
        largest = max_cells(model, wish, fits)
        assert plan_memory(model, replace(wish, ctx_size=largest + 1), fits) is None
        if not largest:
            return
        made = plan_memory(model, replace(wish, ctx_size=largest), fits)
        assert made is not None
    else:
        assert made.n_cells == ctx_size or (not ctx_size and made.n_cells % CELL_STEP == 0)
        assert made.n_cells <= wanted_cells(model, wish)
    assert fits(made)
    assert made.parallel == parallel or (not parallel and 1 <= made.parallel <= DEFAULT_PARALLEL)
    assert made.context_length == min(made.n_cells, trained)


# ── what finished jobs leave ──────────────────────────────────────────────────────────────────────


def test_finished_jobs_may_leave_as_much_as_the_kv_cache_but_half_of_what_is_left_at_most() -> None:
    made = plan(info(), ctx_size=1024)
    assert prefix_cache_bytes(-1, made, 1 << 40) == made.kv_bytes
    assert prefix_cache_bytes(-1, made, 2 * made.kv_bytes) == made.kv_bytes
    assert prefix_cache_bytes(-1, made, made.kv_bytes) == made.kv_bytes // 2
    assert prefix_cache_bytes(-1, made, -1) == 0


@pytest.mark.parametrize("asked", [0, 1, 100 * MIB])
def test_an_asked_for_prefix_cache_is_kept_while_there_is_memory_for_it(asked: int) -> None:
    assert prefix_cache_bytes(asked, plan(info()), 100 * MIB) == asked


@pytest.mark.parametrize("left_bytes", [-5 * MIB, 0, 99 * MIB, 100 * MIB - 1])
def test_a_prefix_cache_beyond_memory_is_refused_with_the_most_there_can_be(left_bytes: int) -> None:
    with pytest.raises(InsufficientMemory) as caught:
        prefix_cache_bytes(100 * MIB, plan(info()), left_bytes)
    most = max(0, left_bytes) // MIB
    assert str(caught.value).startswith(
        f"--prefix-cache-mb 100 is more than the {most} MiB of main memory that the model "
    )
    assert str(caught.value).endswith(f"give at most {most}, or remove the flag")
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (100 * MIB, max(0, left_bytes))


# ── cells ────────────────────────────────────────────────────────────────────────────────────────


def test_cells_cost_what_their_layers_and_types_take() -> None:
    assert sum(kv_layer_bytes(info(), "f16", "f16")) == CELL_BYTES
    assert sum(kv_layer_bytes(info(), "f32", "f16")) == CELL_BYTES * 3 // 2
    assert sum(kv_layer_bytes(info(), "q8_0", "q4_0")) == 4 * 2 * (64 // 32) * (34 + 18)
    assert sum(kv_layer_bytes(info(heads_kv=(0, 2, 0, 4)), "f16", "f16")) == 6 * (64 + 64) * 2
    assert sum(kv_layer_bytes(info(key_length=128), "f16", "f16")) == 8 * (128 + 64) * 2
    assert kv_layer_bytes(info(heads_kv=(0, 2, 0, 4)), "f16", "f16") == (0, 512, 0, 1024)


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_every_cache_type_setting_has_a_size(name: str) -> None:
    assert sum(kv_layer_bytes(info(), name, name)) > 0


def test_a_model_without_attention_needs_no_cells() -> None:
    made = plan(info(heads_kv=(0, 0)))
    assert (made.n_cells, made.kv_bytes) == (MIN_WANTED_CELLS, 0)
