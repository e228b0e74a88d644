"""The plan is what the library takes: on the default model, and on the shapes of well-known ones without weights."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from parity.setups import opened
from tests.llama.conftest import MakeContext
from tests.llama.in_main import weights_in_main
from tests.llama.random_models import GEMMA, HYBRID, NAMED_ONLY, RECURRENT, SLIDING, SLIDING_ONLY, Kind, write_random
from tests.llama.shapes import (
    GEMMA_1B,
    GPT_OSS,
    LLAMA_7B,
    LLAMA_8B,
    MIXTURE,
    QWEN,
    SMOLLM,
    TINY_LLAMA,
    Shape,
    dry_model,
    dry_sizes,
    write_shape,
)
from tools import made_architectures
from worker.limits import MAX_DRAFTS
from worker.llama.model import Model
from worker.model.info import read_info
from worker.plan.memory import Demand, Plan, logits_bytes, plan_of, state_layer_bytes

TOLERANCE = 0.1
"""The tolerated share of the allocated bytes. The graph is estimated; the rest is exact but for rows of logits, which
are allocated later."""


ROUNDED_BYTES = 2**20 // 100
"""The library prints hundredths of a MiB."""

CASES = list(itertools.product((512, 2048, 8192, 16_384, 65_536), ("f16", "q8_0", "q4_0"), (1, 8, 16)))


def demand(
    ctx_size: int,
    parallel: int,
    cache_type: str = "f16",
    ubatch_size: int = 512,
    *,
    flash: bool = True,
    swa_full: bool = True,
) -> Demand:
    return Demand(
        ctx_size=ctx_size,
        parallel=parallel,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
        ubatch_size=ubatch_size,
        has_flash_attention=flash,
        swa_full=swa_full,
    )


def beside_weights(plan: Plan) -> int:
    return plan.kv_bytes + plan.compute_bytes + plan.output_bytes


@pytest.mark.model
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_is_what_the_library_allocates(
    model: Model, default_model: Path, make_context: MakeContext, case: tuple[int, str, int]
) -> None:
    """Five contexts, three types of KV cells, and few, some and many slots."""
    ctx_size, cache_type, parallel = case
    plan = plan_of(read_info(default_model), demand(ctx_size, parallel, cache_type), ctx_size)
    context = make_context(
        n_ctx=ctx_size,
        n_batch=2048,
        n_ubatch=512,
        n_seq_max=parallel + 1,
        type_k=cache_type,
        type_v=cache_type,
        flash_attn="on",
    )
    sizes = model.sizes + context.sizes
    weights_bytes = weights_in_main(default_model).total_bytes
    assert weights_bytes == pytest.approx(sizes.of_kind("model"), rel=0.001)
    assert plan.kv_bytes == pytest.approx(sizes.of_kind("KV"), rel=0.002)
    assert plan.compute_bytes == pytest.approx(sizes.of_kind("compute"), rel=TOLERANCE)
    assert weights_bytes + beside_weights(plan) == pytest.approx(sizes.total_bytes, rel=TOLERANCE)


@pytest.mark.model
@pytest.mark.parametrize("ctx_size", [512, 8192])
def test_it_is_without_flash_attention_too(
    model: Model, default_model: Path, make_context: MakeContext, ctx_size: int
) -> None:
    plan = plan_of(read_info(default_model), demand(ctx_size, 8, flash=False), ctx_size)
    context = make_context(n_ctx=ctx_size, n_batch=2048, n_ubatch=512, n_seq_max=9, flash_attn="off")
    assert plan.compute_bytes == pytest.approx(context.sizes.of_kind("compute"), rel=TOLERANCE)
    drafts_bytes = logits_bytes(read_info(default_model), MAX_DRAFTS)
    assert beside_weights(plan) - drafts_bytes == pytest.approx(context.sizes.total_bytes, rel=TOLERANCE)


@pytest.mark.parametrize("kind", [RECURRENT, HYBRID], ids=str)
@pytest.mark.parametrize("parallel", [1, 7])
def test_the_states_of_recurrent_layers_are_planned(
    tmp_path: Path, make_context: MakeContext, kind: Kind, parallel: int
) -> None:
    """One for each slot, and where there are cells, for each of the two sequence ids that copy and move them."""
    path = write_random(tmp_path / "recurrent.gguf", kind)
    plan = plan_of(read_info(path), demand(512, parallel), 512)
    with opened(path) as model:
        context = make_context(model, n_ctx=512, n_batch=512, n_ubatch=512, n_seq_max=parallel)
        n_bytes = context.sizes.of_kind("RS") + context.sizes.of_kind("KV")
        assert plan.kv_bytes == pytest.approx(n_bytes, abs=2 * ROUNDED_BYTES)
        n_headers = context.kv.n_state_bytes - plan.checkpoint_bytes
        assert 0 < n_headers < 100
        assert plan.checkpoint_stride > 0


@pytest.mark.model
@pytest.mark.parametrize("name", ["lfm2", "nemotron_h", "qwen35"])
def test_their_snapshots_are_planned(tmp_path: Path, make_context: MakeContext, name: str) -> None:
    """They take the states themselves and, at most, what a layer gives of them while it computes. In so small a graph
    where buffers begin decides as much as three layers' states.
    """
    path = made_architectures.write_kind(tmp_path / "made.gguf", made_architectures.KINDS[name])
    sizes: dict[int, tuple[int, int]] = {}
    loose_bytes = 0
    with opened(path) as model:
        for n_snapshots in (0, 1, 3, 7):
            plan = plan_of(read_info(path), replace(demand(512, 4), n_snapshots=n_snapshots), 512)
            context = make_context(
                model, n_ctx=512, n_batch=512, n_ubatch=512, n_seq_max=4, n_snapshots=n_snapshots, flash_attn="on"
            )
            n_bytes = context.sizes.of_kind("RS") + context.sizes.of_kind("KV")
            assert plan.kv_bytes == pytest.approx(n_bytes, abs=3 * ROUNDED_BYTES)
            loose_bytes = 3 * plan.n_seq_ids * max(state_layer_bytes(read_info(path)))
            sizes[n_snapshots] = plan.compute_bytes, context.sizes.of_kind("compute")
    for n_snapshots, (planned, taken) in sizes.items():
        assert taken - sizes[0][1] <= planned - sizes[0][0] + loose_bytes, n_snapshots


@pytest.mark.parametrize("kind", [SLIDING, SLIDING_ONLY, GEMMA, NAMED_ONLY], ids=str)
@pytest.mark.parametrize("swa_full", [True, False])
def test_cells_of_sliding_windows_are_planned_in_full_size_or_not(
    tmp_path: Path, make_context: MakeContext, kind: Kind, swa_full: bool
) -> None:
    """Windows of 8 tokens and steps of 128: where they are not of full size, 256 cells do for 4,096."""
    path = write_random(tmp_path / "sliding.gguf", kind)
    plan = plan_of(read_info(path), demand(4096, 3, ubatch_size=128, swa_full=swa_full), 4096)
    with opened(path) as model:
        sizes = {"n_ctx": 4096, "n_batch": 512, "n_ubatch": 128, "n_seq_max": 3 + swa_full, "swa_full": swa_full}
        context = make_context(model, **sizes)
        assert plan.kv_bytes == pytest.approx(context.sizes.of_kind("KV"), abs=2 * ROUNDED_BYTES)


@pytest.mark.long
@pytest.mark.parametrize("shape", [GEMMA_1B, GPT_OSS], ids=str)
@pytest.mark.parametrize("swa_full", [True, False])
def test_the_graph_of_shapes_with_sliding_windows_takes_what_is_planned(
    tmp_path: Path, shape: Shape, swa_full: bool
) -> None:
    path = write_shape(tmp_path / "shape.gguf", shape)
    info = read_info(path)
    assert info.windows is not None
    with dry_model(path) as handle:
        for ctx_size, parallel, flash in itertools.product((512, 4096, 32_768), (1, 8), (True, False)):
            wish = demand(ctx_size, parallel, flash=flash, swa_full=swa_full)
            plan = plan_of(info, wish, ctx_size)
            taken = dry_sizes(handle, wish, plan).of_kind("compute")
            assert plan.compute_bytes == pytest.approx(taken, rel=TOLERANCE), (ctx_size, parallel, flash)


@pytest.mark.long
@pytest.mark.parametrize("shape", [LLAMA_8B, LLAMA_7B, SMOLLM, TINY_LLAMA, QWEN, MIXTURE], ids=str)
def test_the_graph_of_other_shapes_takes_what_is_planned(tmp_path: Path, shape: Shape) -> None:
    path = write_shape(tmp_path / "shape.gguf", shape)
    info = read_info(path)
    cases = itertools.product((512, 4096, 32_768), (1, 8), (64, 512, 2048), (True, False))
    with dry_model(path) as handle:
        for ctx_size, parallel, ubatch_size, flash in cases:
            wish = demand(ctx_size, parallel, ubatch_size=ubatch_size, flash=flash)
            plan = plan_of(info, wish, ctx_size)
            taken = dry_sizes(handle, wish, plan).of_kind("compute")
            assert plan.compute_bytes == pytest.approx(taken, rel=TOLERANCE), (ctx_size, parallel, ubatch_size, flash)
