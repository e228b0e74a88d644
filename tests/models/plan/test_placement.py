"""The place of a model on made-up devices: the best that has room for it, as many layers as fit, or a plain refusal."""

import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.loading.test_load import configuration
from tests.models.plan.rehearsed import dry_run, layered, repacking
from worker.config.engine_settings import Configure, SplitMode, SwaFull
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.models.facts.info import ModelInfo, Windows
from worker.models.plan.devices import Device, Kind, candidates, choose_device
from worker.models.plan.memory import DEFAULT_UBATCH, KV_SHARE, plan_of
from worker.models.plan.pair import left_beside, left_in_main, place_pair
from worker.models.plan.placement import (
    GPU_SHARE,
    HOST_SHARE,
    MAX_LEFT_BYTES,
    MIN_AUTO_CELLS,
    DryRun,
    Group,
    InMain,
    Placement,
    gpu_room,
    groups_for,
    place,
    spread,
)
from worker.models.upstream.numbers import CELL_STEP

MIB, GIB = 2**20, 2**30
PLENTY = 1 << 45


def gpu(free_bytes: int, index: int = 0, backend: str = "cuda", kind: Kind = "gpu") -> Device:
    name = {"cuda": "CUDA", "vulkan": "Vulkan", "metal": "MTL"}[backend]
    return Device(f"{name}{index}", "a card", kind, backend, index, free_bytes, PLENTY, index)


CPU = Device("CPU", "a processor", "cpu", "cpu", 0, PLENTY, PLENTY, 99)

MODEL = layered()
N_LAYERS = 9

FREE_BYTES = st.integers(0, 8 * GIB)


def config(**changes: Any) -> Configure:
    return configuration(Path("m.gguf"), **{"device": "auto", "ctx_size": 4096, "parallel": 8, **changes})


def placed(
    available: list[Device], main_memory_bytes: int = PLENTY, model: ModelInfo = MODEL, **changes: object
) -> Placement:
    return place(config(**changes), model, available, main_memory_bytes, dry_run)


def needs(n_gpu_layers: int = N_LAYERS, model: ModelInfo = MODEL, **changes: Any) -> int:
    """Bytes that so many layers take on one GPU."""
    asked = config(**changes)
    group = Group((gpu(PLENTY),), (1.0,))
    need = dry_run(asked, model, group, n_gpu_layers, plan_of(asked, model, asked.ctx_size))
    _, _, (part,) = spread(model, need.buffers, ["CUDA0"])
    return part.total_bytes


def with_room_for(n_bytes: int, index: int = 0, backend: str = "cuda", kind: Kind = "gpu") -> Device:
    """A GPU that has room for so much and no more."""
    return gpu(min(math.ceil(n_bytes / GPU_SHARE), n_bytes + MAX_LEFT_BYTES), index, backend, kind)


# ── which device ─────────────────────────────────────────────────────────────────────────────────


def test_auto_prefers_a_card_of_its_own_then_free_memory() -> None:
    integrated = gpu(80 * GIB, backend="vulkan", kind="igpu")
    assert placed([integrated, gpu(40 * GIB), gpu(41 * GIB, index=1), CPU]).device == gpu(41 * GIB, index=1)
    assert placed([integrated, gpu(GIB), CPU]).device == integrated, "the card has no room"


def test_auto_takes_the_gpu_with_most_layers_where_none_has_room_for_all() -> None:
    few, more = with_room_for(needs(3)), with_room_for(needs(5), index=1)
    for available in ([few, more, CPU], [more, few, CPU]):
        found = placed(available)
        assert (found.device, found.n_gpu_layers, found.is_complete) == (more, 5, False)


def test_auto_is_the_cpu_where_no_gpu_has_room_for_a_layer_and_where_there_is_none() -> None:
    for available in ([with_room_for(needs(1) - MIB), CPU], [CPU]):
        found = placed(available)
        assert (found.device, found.n_gpu_layers, found.gpus) == (CPU, 0, ())
        assert found.is_complete, "all of it is where it was put"


@given(free=st.lists(FREE_BYTES, min_size=1, max_size=4), main_memory_bytes=st.integers(3 * GIB, 12 * GIB))
def test_auto_never_passes_over_a_gpu_that_has_room_for_all(free: list[int], main_memory_bytes: int) -> None:
    gpus = [gpu(free_bytes, index) for index, free_bytes in enumerate(free)]
    try:
        found = placed([*gpus, CPU], main_memory_bytes)
    except InsufficientMemory:
        assert max(map(gpu_room, gpus)) < needs()
        return
    fitting = [one for one in gpus if gpu_room(one) >= needs()]
    if fitting:
        assert found.device == max(fitting, key=lambda one: one.free_bytes)
    assert found.is_complete == (bool(fitting) or found.device == CPU)


@given(free_bytes=FREE_BYTES, ctx_size=st.sampled_from((0, 4096)), batch_size=st.sampled_from((512, 1024, 2048, 4096)))
def test_a_gpu_has_the_widest_micro_batch_that_costs_neither_cells_nor_jobs_nor_layers(
    free_bytes: int, ctx_size: int, batch_size: int
) -> None:
    there: list[Device] = [gpu(free_bytes), CPU]
    asked, free = (
        placed(there, ctx_size=ctx_size, batch_size=batch_size, ubatch_size=size) for size in (DEFAULT_UBATCH, 0)
    )
    assert (free.device, free.n_gpu_layers) == (asked.device, asked.n_gpu_layers)
    assert (free.plan.n_cells, free.plan.parallel) == (asked.plan.n_cells, asked.plan.parallel)
    assert all(part.total_bytes <= gpu_room(one) for one, part in zip(free.group.devices, free.gpus, strict=False))
    if not free.is_complete or free.device == CPU:
        assert free.plan.ubatch_size == DEFAULT_UBATCH
    elif free_bytes > needs(ubatch_size=2048) + 4 * GIB:
        assert free.plan.ubatch_size == max(DEFAULT_UBATCH, min(2048, batch_size))


@pytest.mark.parametrize("changes", [{"ubatch_size": 700}, {"deterministic": True}, {"device": "cpu"}])
def test_a_micro_batch_that_was_asked_for_is_kept_and_only_a_gpu_has_a_wider_one(changes: dict[str, Any]) -> None:
    assert placed([gpu(80 * GIB), CPU], **{"ubatch_size": 0, **changes}).plan.ubatch_size == changes.get(
        "ubatch_size", DEFAULT_UBATCH
    )


def test_an_asked_for_device_is_obeyed_or_refused() -> None:
    small, large = with_room_for(needs(1) - MIB), gpu(80 * GIB, index=1)
    assert placed([small, large, CPU], device="cuda:1").device == large
    assert placed([small, large, CPU], device="cpu").device == CPU
    with pytest.raises(InsufficientMemory, match=r"not enough memory on CUDA0 \(a card\)"):
        placed([small, large, CPU], device="cuda:0")
    with pytest.raises(ModelLoadFailed, match="no such device: --device cuda:2"):
        placed([small, large, CPU], device="cuda:2")


# ── how many layers ──────────────────────────────────────────────────────────────────────────────


@given(free_bytes=FREE_BYTES, main_memory_bytes=st.integers(3 * GIB, 12 * GIB), ctx_size=st.integers(1, 200_000))
def test_as_many_layers_as_fit_are_on_the_gpu_and_no_more(
    free_bytes: int, main_memory_bytes: int, ctx_size: int
) -> None:
    one = gpu(free_bytes)
    try:
        found = placed([one], main_memory_bytes, ctx_size=ctx_size)
    except InsufficientMemory:
        assert gpu_room(one) < needs(ctx_size=ctx_size)
        return
    assert found.gpus[0].total_bytes == needs(found.n_gpu_layers, ctx_size=ctx_size) <= gpu_room(one)
    assert found.main_memory.total_bytes <= main_memory_bytes * HOST_SHARE
    assert found.plan.n_cells == ctx_size
    if not found.is_complete:
        assert needs(found.n_gpu_layers + 1, ctx_size=ctx_size) > gpu_room(one)


@pytest.mark.parametrize(
    ("asked", "n_gpu_layers"), [("all", N_LAYERS), ("0", 0), ("3", 3), ("9", 9), ("9999", N_LAYERS)]
)
def test_an_asked_for_number_of_layers_is_kept(asked: str, n_gpu_layers: int) -> None:
    assert placed([gpu(80 * GIB), CPU], gpu_layers=asked).n_gpu_layers == n_gpu_layers


@pytest.mark.parametrize("changes", [{"gpu_layers": "all"}, {"gpu_layers": "6"}, {"require_full_offload": True}])
def test_what_was_asked_for_is_not_made_less(changes: dict[str, Any]) -> None:
    with pytest.raises(InsufficientMemory):
        placed([with_room_for(needs(5)), CPU], **changes)


def test_full_offload_by_auto_needs_a_gpu() -> None:
    with pytest.raises(ModelLoadFailed, match="no GPU was found"):
        placed([CPU], require_full_offload=True)
    assert placed([CPU], require_full_offload=True, device="cpu").device == CPU


@pytest.mark.parametrize(
    ("flag", "changes"),
    [
        ("--gpu-layers all", {"gpu_layers": "all"}),
        ("--gpu-layers 10", {"gpu_layers": "10"}),
        ("--split-mode layer", {"split_mode": "layer"}),
        ("--split-mode row", {"split_mode": "row"}),
    ],
)
def test_a_flag_that_asks_for_gpus_is_refused_where_there_are_none(flag: str, changes: dict[str, Any]) -> None:
    with pytest.raises(
        ModelLoadFailed, match=f"^{flag}, but no GPU was found .*remove --[a-z-]+ to serve from the CPU"
    ):
        placed([CPU], **changes)


@pytest.mark.parametrize("changes", [{}, {"gpu_layers": "auto"}, {"gpu_layers": "0"}, {"gpu_layers": "000"}])
def test_no_gpu_is_needed_where_none_is_asked_for(changes: dict[str, Any]) -> None:
    assert placed([CPU], **changes).device == CPU


def test_no_layers_on_an_unnamed_gpu_is_the_cpu() -> None:
    """Otherwise the GPU would be reported as the device of a model that is not there."""
    assert placed([gpu(80 * GIB), CPU], gpu_layers="0").device == CPU
    assert placed([gpu(80 * GIB), CPU], gpu_layers="0", device="cuda").device == gpu(80 * GIB)
    assert placed([gpu(80 * GIB), CPU], gpu_layers="0", main_gpu=0).device == gpu(80 * GIB)


@pytest.mark.parametrize("n_layers", [1, N_LAYERS - 1])
def test_full_offload_and_fewer_layers_contradict_each_other(n_layers: int) -> None:
    with pytest.raises(ModelLoadFailed, match=f"leaves {N_LAYERS - n_layers} of {N_LAYERS} layers off the device"):
        placed([gpu(80 * GIB), CPU], gpu_layers=str(n_layers), require_full_offload=True)
    assert placed([gpu(80 * GIB), CPU], gpu_layers=str(N_LAYERS), require_full_offload=True).is_complete


def test_the_default_context_shrinks_for_layers_but_not_below_its_minimum() -> None:
    """8 slots of up to 8192 cells would be 16384."""
    assert placed([gpu(80 * GIB)], ctx_size=0).plan.n_cells == 16_384
    tight = placed([with_room_for(needs(ctx_size=MIN_AUTO_CELLS))], ctx_size=0)
    assert (tight.plan.n_cells, tight.n_gpu_layers) == (MIN_AUTO_CELLS, N_LAYERS)
    partial = placed([with_room_for(needs(ctx_size=MIN_AUTO_CELLS) - MIB)], ctx_size=0)
    assert (partial.plan.n_cells, partial.is_complete) == (MIN_AUTO_CELLS, False)
    forced = placed([with_room_for(needs(ctx_size=1024))], ctx_size=0, gpu_layers="all")
    assert (forced.plan.n_cells, forced.is_complete) == (1024, True)


@given(
    free_bytes=FREE_BYTES, main_memory_bytes=st.integers(0, 12 * GIB), n_layers=st.sampled_from(["auto", "all", "0"])
)
def test_default_cells_take_a_part_of_what_is_free_where_the_model_goes(
    free_bytes: int, main_memory_bytes: int, n_layers: str
) -> None:
    model, available = replace(MODEL, context_length=131_072), [gpu(free_bytes), CPU]
    with suppress(InsufficientMemory):
        found = placed(available, main_memory_bytes, model, ctx_size=0, gpu_layers=n_layers)
        free = free_bytes if found.group.is_gpu else main_memory_bytes
        assert found.plan.n_cells <= 131_072
        assert found.need.kv_bytes <= free // KV_SHARE or found.plan.n_cells == CELL_STEP


def test_a_model_is_not_split_for_default_cells() -> None:
    """Whole on a card of which a quarter holds less than the least context for which layers would leave it."""
    model = replace(layered(), block_count=1000, head_counts=(4,) * 1000, head_counts_kv=(2,) * 1000)
    free_bytes = int(needs(1001, model, ctx_size=CELL_STEP) * 1.6)
    found = placed([gpu(free_bytes), CPU], model=model, ctx_size=0)
    assert found.plan.n_cells < MIN_AUTO_CELLS
    assert (found.group.is_gpu, found.is_complete) == (True, True)


def test_a_small_context_on_the_gpu_is_better_than_none() -> None:
    """The layers that do not go to the GPU have no room anywhere."""
    tight = with_room_for(needs(ctx_size=1024))
    found = placed([tight], 1300 * MIB, ctx_size=0)
    assert (found.plan.n_cells, found.is_complete) == (1024, True)


@given(free_bytes=FREE_BYTES, main_memory_bytes=st.integers(0, 12 * GIB), device=st.sampled_from(["auto", "cuda"]))
def test_the_default_context_fits_or_is_refused(free_bytes: int, main_memory_bytes: int, device: str) -> None:
    available = [gpu(free_bytes), CPU]
    try:
        found = placed(available, main_memory_bytes, device=device, ctx_size=0)
    except InsufficientMemory:
        for ctx_size in (CELL_STEP, MIN_AUTO_CELLS):
            with pytest.raises(InsufficientMemory):
                placed(available, main_memory_bytes, device=device, ctx_size=ctx_size)
        return
    assert all(part.total_bytes <= gpu_room(one) for one, part in zip(available, found.gpus, strict=False))
    assert found.main_memory.total_bytes <= main_memory_bytes * HOST_SHARE


# ── the refusal ──────────────────────────────────────────────────────────────────────────────────


def refusal(available: list[Device], main_memory_bytes: int = PLENTY, **changes: Any) -> InsufficientMemory:
    with pytest.raises(InsufficientMemory) as caught:
        placed(available, main_memory_bytes, **changes)
    return caught.value


def test_a_refusal_names_the_device_both_figures_and_what_would_fit() -> None:
    error = refusal([with_room_for(needs(6)), CPU], gpu_layers="all", ctx_size=8192)
    assert error.device == "CUDA0 (a card)"
    assert (error.needed_bytes, error.available_bytes) == (needs(ctx_size=8192), gpu_room(with_room_for(needs(6))))
    line = str(error)
    assert f"not enough memory on CUDA0 (a card): {error.needed_bytes / MIB:.0f} MiB needed (weights 4410 MiB" in line
    assert "KV cache of 8192 cells 32 MiB, compute about 0 MiB), " in line
    assert line.endswith(f"{error.available_bytes / MIB:.0f} MiB available; the largest --gpu-layers that fits is 5")


@given(free_bytes=FREE_BYTES, ctx_size=st.integers(1, 500_000), asked=st.sampled_from(["all", "5"]))
def test_what_a_refusal_advises_fits_and_more_does_not(free_bytes: int, ctx_size: int, asked: str) -> None:
    one = gpu(free_bytes)
    try:
        placed([one], gpu_layers=asked, ctx_size=ctx_size)
    except InsufficientMemory as error:
        line = str(error)
    else:
        return
    layers, cells = (
        re.search(r"--gpu-layers that fits is (\d+)", line),
        re.search(r"--ctx-size that fits is (\d+)", line),
    )
    if layers:
        assert placed([one], gpu_layers=layers[1], ctx_size=ctx_size).n_gpu_layers == int(layers[1])
    if cells:
        assert placed([one], gpu_layers=asked, ctx_size=int(cells[1])).plan.n_cells == int(cells[1])
    assert bool(layers or cells) != ("no context fits" in line)
    wishes: list[dict[str, Any]] = [
        {"gpu_layers": str(int(layers[1] if layers else 0) + 1), "ctx_size": ctx_size},
        {"gpu_layers": asked, "ctx_size": int(cells[1] if cells else 0) + 1},
    ]
    for wish in wishes:
        with pytest.raises(InsufficientMemory):
            placed([one], **wish)


def test_full_offload_is_not_advised_to_be_given_up() -> None:
    error = refusal([with_room_for(needs(6))], require_full_offload=True)
    assert "no context fits" in str(error)


def test_a_cpu_is_refused_with_the_context_that_would_fit() -> None:
    fits = placed([CPU], ctx_size=2048).host.total_bytes
    error = refusal([CPU], int(fits / HOST_SHARE) + 1, ctx_size=4096)
    assert error.device == "CPU (a processor)"
    assert str(error).endswith("MiB available; the largest --ctx-size that fits is 2048")
    assert error.needed_bytes > error.available_bytes


def test_too_little_main_memory_next_to_a_gpu_is_named_as_such() -> None:
    """The embedding stays there."""
    error = refusal([gpu(80 * GIB)], 900 * MIB, device="cuda")
    assert error.device == "main memory"
    assert "weights 1000 MiB" in str(error)


def test_memory_that_a_gpu_shares_with_the_host_counts_once() -> None:
    shared, own = gpu(80 * GIB, backend="metal"), gpu(80 * GIB)
    needed = placed([shared]).main_memory.total_bytes
    assert needed == placed([own]).main_memory.total_bytes + placed([own]).gpus[0].total_bytes
    assert placed([shared], int(needed / HOST_SHARE) + 1, device="metal", gpu_layers="all").is_complete
    error = refusal([shared], int(needed / HOST_SHARE) - MIB, device="metal", gpu_layers="all")
    assert (error.device, error.needed_bytes) == ("main memory", needed)


# ── weights that the CPU lays out anew ───────────────────────────────────────────────────────────


def in_main(available: list[Device], **changes: object) -> InMain:
    found = place(config(**changes), MODEL, available, PLENTY, repacking)
    assert found.host.weights_bytes == found.weights_in_main.total_bytes
    return found.weights_in_main


def test_layers_in_main_memory_are_repacked_unless_a_gpu_reads_them_there() -> None:
    pinning = replace(gpu(80 * GIB), has_host_buffers=True)
    sharing = gpu(80 * GIB, backend="metal")
    assert in_main([CPU]).repacked > in_main([sharing], device="metal", gpu_layers="5").repacked > 0
    assert in_main([pinning], device="cuda", gpu_layers="5").repacked == 0
    assert in_main([sharing], device="metal", gpu_layers="all").repacked == 0


def test_what_is_there_twice_is_needed_and_leaves_less_for_cells() -> None:
    """A tied embedding is looked up in one layout and multiplied in another."""
    model = layered(has_output=False)

    def needed(run: DryRun) -> InsufficientMemory:
        with pytest.raises(InsufficientMemory) as caught:
            place(config(device="cpu", ctx_size=2**20), model, [CPU], 6 * GIB, run)
        return caught.value

    once, twice = needed(dry_run), needed(repacking)
    assert twice.needed_bytes == once.needed_bytes + 1000 * MIB
    fits = [int(re.findall(r"--ctx-size that fits is (\d+)", str(error))[0]) for error in (once, twice)]
    assert fits[1] < fits[0]
    for n_cells, run in zip(fits, (dry_run, repacking), strict=True):
        found = place(config(device="cpu", ctx_size=n_cells), model, [CPU], 6 * GIB, run)
        assert found.main_memory.total_bytes <= 6 * GIB * HOST_SHARE


# ── several GPUs ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["layer", "row"])
def test_all_gpus_of_the_backend_share_a_model(mode: SplitMode) -> None:
    first, second, other = gpu(2 * GIB), gpu(80 * GIB, index=1), gpu(79 * GIB, backend="vulkan")
    found = placed([first, second, other, CPU], split_mode=mode)
    assert found.group.devices == (first, second)
    assert found.group.shares == (2 * GIB, 80 * GIB)
    assert placed([first, second, other, CPU], split_mode=mode, device="vulkan").group.devices == (other,)
    assert placed([first, second, CPU], split_mode=mode, device="cuda:1").group.devices == (first, second)


def test_what_fits_none_alone_may_fit_all_together() -> None:
    gpus = [with_room_for(needs() * 2 // 3, index) for index in range(2)]
    assert not placed([*gpus, CPU]).is_complete
    found = placed([*gpus, CPU], split_mode="layer")
    assert found.is_complete
    assert all(part.total_bytes <= gpu_room(one) for one, part in zip(gpus, found.gpus, strict=True))


def test_shares_are_kept_and_the_gpu_that_has_too_little_room_for_its_own_is_named() -> None:
    gpus = [with_room_for(needs() * 2 // 3, index) for index in range(2)]
    error = refusal([*gpus, CPU], split_mode="layer", tensor_split="1,9", gpu_layers="all")
    assert error.device == "CUDA1 (a card)"
    assert placed([*gpus, CPU], split_mode="layer", tensor_split="5,4").group.shares == (5.0, 4.0)


@pytest.mark.parametrize("n_shares", [1, 3])
def test_shares_are_one_for_each_gpu(n_shares: int) -> None:
    line = rf"--tensor-split has {n_shares} shares, but there are 2 GPUs: CUDA0, CUDA1"
    with pytest.raises(ModelLoadFailed, match=line):
        placed([gpu(GIB), gpu(GIB, 1), CPU], split_mode="layer", tensor_split=",".join("1" * n_shares))


def test_shares_and_a_main_gpu_need_gpus() -> None:
    with pytest.raises(ModelLoadFailed, match="--tensor-split needs GPUs, but no GPU was found"):
        placed([CPU], split_mode="layer", tensor_split="1")
    with pytest.raises(ModelLoadFailed, match="--main-gpu 0 does not exist"):
        placed([CPU], main_gpu=0)


def test_the_main_gpu_is_counted_among_those_of_its_backend() -> None:
    available = [gpu(90 * GIB), gpu(GIB, 1), gpu(80 * GIB, backend="vulkan"), CPU]
    assert placed(available, main_gpu=0).device == available[0]
    assert placed(available, main_gpu=0, device="vulkan").device == available[2]
    with pytest.raises(InsufficientMemory, match="CUDA1"):
        placed(available, main_gpu=1, gpu_layers="all")
    with pytest.raises(InsufficientMemory, match="CUDA1"):
        placed([available[0], gpu(0, 1), CPU], main_gpu=1)
    with pytest.raises(ModelLoadFailed, match=r"--main-gpu 2 does not exist; the 2 GPUs are CUDA0, CUDA1"):
        groups_for(config(main_gpu=2, device="cuda"), available)


def test_gpus_that_report_no_free_memory_get_equal_shares() -> None:
    [group] = groups_for(config(device="cuda", split_mode="layer"), [gpu(0), gpu(0, 1)])
    assert group.shares == (1.0, 1.0)


def test_shares_of_nothing_are_llama_cpps_own_which_are_free_memory() -> None:
    wish = config(device="cuda", split_mode="layer", tensor_split="0,0")
    assert groups_for(wish, [gpu(3), gpu(1, 1)])[0].shares == (3.0, 1.0)


# ── room ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("free_bytes", "left_bytes"), [(0, 0), (10 * MIB, MIB), (10 * GIB, GIB), (141 * GIB, GIB)])
def test_a_part_of_a_gpu_is_left_to_its_driver(free_bytes: int, left_bytes: int) -> None:
    assert gpu_room(gpu(free_bytes)) == free_bytes - left_bytes


# ── sliding windows ──────────────────────────────────────────────────────────────────────────────

SLIDING = replace(MODEL, windows=Windows(128, (True, False) * 4, MODEL.key_length, MODEL.value_length))


def sliding_needs(swa_full: SwaFull) -> int:
    """Bytes of main memory."""
    return placed([CPU], PLENTY, SLIDING, swa_full=swa_full).host.total_bytes


def test_windows_are_of_full_size_where_there_is_room_and_small_where_not() -> None:
    small, full = sliding_needs("off"), sliding_needs("on")
    assert small < full
    for n_bytes, swa_full in [(full, True), (full - MIB, False), (small, False)]:
        found = placed([CPU], math.ceil(n_bytes / HOST_SHARE), SLIDING)
        assert (found.plan.swa_full, found.host.total_bytes) == (swa_full, full if swa_full else small)
    with pytest.raises(InsufficientMemory):
        placed([CPU], small - MIB, SLIDING)
    with pytest.raises(InsufficientMemory):
        placed([CPU], full - MIB, SLIDING, swa_full="on")
    assert not placed([CPU], PLENTY, SLIDING, swa_full="off").plan.swa_full


@given(
    free=st.lists(FREE_BYTES, max_size=2),
    main_memory_bytes=st.integers(3 * GIB, 12 * GIB),
    ctx_size=st.sampled_from((0, 4096, 65_536)),
)
def test_full_windows_never_cost_cells_slots_or_layers(free: list[int], main_memory_bytes: int, ctx_size: int) -> None:
    available = [*(gpu(free_bytes, index) for index, free_bytes in enumerate(free)), CPU]
    by_choice: dict[str, Placement] = {}
    for swa_full in ("auto", "off"):
        with suppress(InsufficientMemory):
            by_choice[swa_full] = placed(
                available, main_memory_bytes, SLIDING, swa_full=swa_full, ctx_size=ctx_size, parallel=0
            )
    assert set(by_choice) in ({"auto", "off"}, set())
    if by_choice:
        auto, off = by_choice["auto"], by_choice["off"]
        assert (auto.group, auto.n_gpu_layers) == (off.group, off.n_gpu_layers)
        assert (auto.plan.n_cells, auto.plan.parallel) == (off.plan.n_cells, off.plan.parallel)


def device(backend: str, index: int = 0, kind: Kind = "gpu", free_bytes: int = 8) -> Device:
    return Device(f"{backend}{index}", f"a {backend}", kind, backend, index, free_bytes, 16, 0)


PROCESSOR = device("cpu", kind="cpu")
CUDA0, CUDA1 = device("cuda"), device("cuda", 1, free_bytes=12)
VULKAN = device("vulkan", kind="igpu", free_bytes=99)
BLAS = device("blas", kind="accel")
ALL = [CUDA0, CUDA1, VULKAN, BLAS, PROCESSOR]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("auto", CUDA1),
        ("cpu", PROCESSOR),
        ("cuda", CUDA0),
        ("cuda:1", CUDA1),
        ("vulkan", VULKAN),
        ("vulkan:0", VULKAN),
        ("0", CUDA0),
        ("1", CUDA1),
        ("2", VULKAN),
    ],
)
def test_a_name_means_a_device(asked: str, chosen: Device) -> None:
    assert choose_device(asked, ALL) is chosen


def test_auto_ranks_all_gpus_and_then_the_cpu_the_others_mean_one_device() -> None:
    assert candidates("auto", ALL) == [CUDA1, CUDA0, VULKAN, PROCESSOR]
    assert candidates("cuda:0", ALL) == [CUDA0]
    assert candidates("2", ALL) == [VULKAN]


def test_auto_passes_by_a_gpu_of_which_the_driver_reports_no_memory_and_its_name_still_means_it() -> None:
    shell = replace(CUDA0, free_bytes=0, total_bytes=0)
    assert candidates("auto", [shell, PROCESSOR]) == [PROCESSOR]
    assert candidates("auto", [shell, CUDA1, PROCESSOR]) == [CUDA1, PROCESSOR]
    assert choose_device("cuda", [shell, CUDA1, PROCESSOR]) is shell


@pytest.mark.parametrize("asked", ["cuda:2", "metal", "vulkan:1", "3", "blas"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(ModelLoadFailed, match=asked):
        choose_device(asked, ALL)


def test_the_refusal_names_what_there_is() -> None:
    with pytest.raises(ModelLoadFailed, match=r"no such device: --device cuda;.*cpu:0 \(a cpu\)"):
        choose_device("cuda", [PROCESSOR])


def test_memory_is_named_for_where_it_lies() -> None:
    architectures = [found.memory_architecture for found in (PROCESSOR, CUDA0, VULKAN, device("metal"))]
    assert architectures == ["host", "vram-only", "unified", "unified"]


SMALL = replace(
    MODEL, tensors=tuple(replace(tensor, n_bytes=tensor.n_bytes // 10) for tensor in MODEL.tensors), path=Path("d.gguf")
)
ON_CPU = {"draft_path": "d.gguf", "draft_device": "cpu"}


class Pair(NamedTuple):
    served: Placement
    draft: Placement


def placed_pair(config: Configure, draft: ModelInfo, available: list[Device], main_memory_bytes: int) -> Pair:
    return Pair(*place_pair(config, (MODEL, draft), available, main_memory_bytes, dry_run))


def pair(
    available: list[Device], main_memory_bytes: int = PLENTY, draft: dict[str, str] = ON_CPU, **changes: object
) -> Pair:
    return placed_pair(config(**draft, **changes), SMALL, available, main_memory_bytes)


def bytes_of(found: Pair) -> int:
    return found.served.main_memory.total_bytes + found.draft.main_memory.total_bytes


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_a_draft_model_has_the_cells_and_slots_of_the_model() -> None:
    found = pair([CPU], device="cpu")
    assert (found.draft.plan.n_cells, found.draft.plan.parallel) == (4096, 8)
    assert (found.served.plan.n_cells, found.served.plan.parallel) == (4096, 8)


def test_a_draft_model_with_recurrent_state_needs_two_slots_for_each_job() -> None:
    recurrent = replace(SMALL, architecture="mamba")
    most = placed_pair(config(**ON_CPU, parallel=127), recurrent, [CPU], PLENTY)
    assert most.draft.plan.parallel == 254
    with pytest.raises(ModelLoadFailed, match="drafts for at most 127 jobs: give --parallel that number or less"):
        placed_pair(config(**ON_CPU, parallel=128), recurrent, [CPU], PLENTY)


def test_both_are_in_the_room_there_is_or_refused_with_what_the_draft_model_takes() -> None:
    least = bytes_of(pair([CPU], device="cpu", ctx_size=CELL_STEP, parallel=1))
    fits = pair([CPU], int(least / HOST_SHARE) + MIB, device="cpu", ctx_size=CELL_STEP, parallel=1)
    assert bytes_of(fits) == least
    with pytest.raises(InsufficientMemory, match=r"the draft model also needs .* MiB: remove --draft-model"):
        pair([CPU], int(least / HOST_SHARE) - 2 * MIB, device="cpu", ctx_size=CELL_STEP, parallel=1)


def test_the_default_context_is_made_smaller_for_both() -> None:
    roomy = pair([CPU], device="cpu", ctx_size=0)
    least = bytes_of(pair([CPU], device="cpu", ctx_size=CELL_STEP, parallel=1))
    scarce = pair([CPU], int((least + bytes_of(roomy)) / 2 / HOST_SHARE), device="cpu", ctx_size=0)
    assert scarce.draft.plan.n_cells <= scarce.served.plan.n_cells < roomy.served.plan.n_cells
    assert bytes_of(scarce) <= (least + bytes_of(roomy)) / 2


def test_a_draft_model_may_have_a_device_of_its_own() -> None:
    card = with_room_for(needs())
    found = pair([card, CPU])
    assert (found.served.device, found.draft.device) == (card, CPU)
    assert found.served.is_complete


def test_a_draft_model_leaves_the_model_what_is_left_of_a_gpu() -> None:
    card = gpu(1 << 40)
    draft = place(config(ctx_size=4096), SMALL, [card, CPU], PLENTY, dry_run)
    (rest, cpu) = left_beside(draft, [card, CPU])
    assert card.free_bytes - rest.free_bytes == draft.gpus[0].total_bytes > 0
    assert cpu == CPU
    assert PLENTY - left_in_main(draft, PLENTY) >= draft.main_memory.total_bytes
