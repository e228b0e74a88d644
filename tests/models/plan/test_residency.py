"""The reported place of a model, after a load and later, by the library, the plan and the devices' figures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.plan.test_placement import CPU, GIB, MIB, MODEL, gpu, placed
from worker.llama.devices import devices, memory_of
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device, Memory, choose_device
from worker.models.plan.placement import Placement
from worker.models.plan.residency import (
    DRIVERS_OWN_BYTES,
    MIN_BYTES,
    TOLERANCE,
    is_resident,
    judge,
    off_plan,
    residency_on,
)
from worker.wire.load import OffPlan, Residency

CARD = gpu(80 * GIB)


def as_planned(placement: Placement, factor: float = 1.0) -> BufferSizes:
    """The buffers of a plan that came true, or of one that was off by a factor."""
    host = [
        Buffer("CPU", "model", placement.host.weights_bytes),
        Buffer("CPU", "compute", placement.host.compute_bytes),
    ]
    found = [] if placement.host.kv_bytes == 0 else [Buffer("CPU", "KV", placement.host.kv_bytes)]
    for device, part in zip(placement.group.devices, placement.gpus, strict=False):
        for kind, n_bytes in (("model", part.weights_bytes), ("KV", part.kv_bytes), ("compute", part.compute_bytes)):
            found.append(Buffer(device.name, kind, int(n_bytes * factor)))
    return BufferSizes((*host, *found))


def without(sizes: BufferSizes, name: str, kind: str) -> BufferSizes:
    """The same buffers, with those of a kind in main memory."""
    return BufferSizes(
        tuple(replace(one, name="CPU") if (one.name, one.kind) == (name, kind) else one for one in sizes.buffers)
    )


# ── after a load: residency ────────────────────────────────────────────────────────────────────────────────────


ONE, TWO = placed([CARD]), placed([CARD, gpu(80 * GIB, 1)], split_mode="layer")
ON_CPU, IN_PART = placed([CPU]), placed([CARD], gpu_layers="5")
A_LITTLE_LESS = BufferSizes(tuple(replace(one, size_bytes=one.size_bytes - 5000) for one in as_planned(ONE).buffers))
"""Figures that were rounded down are no sign of weights elsewhere."""


@pytest.mark.parametrize(
    ("placement", "n_offloaded", "sizes", "expected"),
    [
        (ONE, ONE.n_layers, as_planned(ONE), True),
        (ONE, ONE.n_layers, A_LITTLE_LESS, True),
        (ONE, ONE.n_layers, without(as_planned(ONE), "CUDA0", "model"), False),
        (ONE, ONE.n_layers, without(as_planned(ONE), "CUDA0", "KV"), False),
        (ONE, ONE.n_layers - 1, as_planned(ONE), False),
        (IN_PART, 5, as_planned(IN_PART), False),
        (ON_CPU, 0, as_planned(ON_CPU), True),
        (TWO, TWO.n_layers, as_planned(TWO), True),
        (TWO, TWO.n_layers, without(as_planned(TWO), "CUDA1", "model"), False),
    ],
)
def test_a_model_is_resident_whose_layers_weights_and_cells_are_where_they_were_put(
    placement: Placement, n_offloaded: int, sizes: BufferSizes, *, expected: bool
) -> None:
    assert is_resident(MODEL, placement, n_offloaded, sizes) is expected


# ── against the plan ─────────────────────────────────────────────────────────────────────────────


def reported(placement: Placement, factor: float, taken_bytes: int | None = None) -> tuple[OffPlan, ...]:
    """Return the report with a driver that says as much was taken as was allocated, or something else."""
    sizes = as_planned(placement, factor)
    free_after = [
        device.free_bytes - (sizes.on_device(device.name) if taken_bytes is None else taken_bytes)
        for device in placement.group.devices
    ]
    return off_plan(placement, sizes, free_after)


@pytest.mark.parametrize("factor", [0.5, 0.89, 0.91, 1.0, 1.09, 1.11])
def test_more_than_a_tenth_is_reported_with_both_figures(factor: float) -> None:
    allocated = as_planned(ONE, factor).on_device("CUDA0")
    expected = OffPlan("CUDA0 (a card)", ONE.gpus[0].total_bytes, allocated, allocated)
    assert reported(ONE, factor) == (() if abs(factor - 1) < 0.1 else (expected,))


def test_a_cpu_is_judged_by_all_its_buffers() -> None:
    whole = placed([CPU])
    assert off_plan(whole, as_planned(whole), [0]) == ()
    [found] = off_plan(whole, BufferSizes((Buffer("CPU", "model", GIB),)), [0])
    assert (found.device, found.allocated_bytes, found.taken_bytes) == ("CPU (a processor)", GIB, None)


def test_a_small_difference_is_not_reported() -> None:
    small = placed([CPU], ctx_size=256)
    small = replace(small, host=replace(small.host, weights_bytes=0, kv_bytes=MIB))
    assert off_plan(small, BufferSizes((Buffer("CPU", "KV", MIN_BYTES // 2),)), [0]) == ()


@pytest.mark.parametrize(
    ("taken_bytes", "is_reported"),
    [
        (0, False),
        (3 * GIB, True),
        (int(4410 * MIB * (1 - TOLERANCE)) - MIN_BYTES - MIB, True),
        (4410 * MIB, False),
        (4410 * MIB + DRIVERS_OWN_BYTES, False),
        (5000 * MIB + DRIVERS_OWN_BYTES, True),
    ],
)
def test_the_drivers_account_may_contradict_it(taken_bytes: int, is_reported: bool) -> None:
    """A driver that says nothing was taken does not count; its own gigabyte is not ours."""
    found = reported(placed([CARD]), 1.0, taken_bytes)
    assert [one.taken_bytes for one in found] == [taken_bytes] * is_reported


def test_memory_that_is_shared_with_everything_else_contradicts_nothing() -> None:
    shared: Device = gpu(80 * GIB, backend="metal")
    assert reported(placed([shared], gpu_layers="all"), 1.0, 60 * GIB) == ()


def test_each_gpu_is_judged_alone() -> None:
    whole = placed([CARD, gpu(80 * GIB, 1)], split_mode="layer")
    sizes = BufferSizes(tuple(one for one in as_planned(whole).buffers if one.name != "CUDA1"))
    assert [found.device for found in off_plan(whole, sizes, [CARD.free_bytes] * 2)] == ["CUDA1 (a card)"]


# ── later ────────────────────────────────────────────────────────────────────────────────────────


BYTES = st.integers(0, 2**40)
MEMORIES = st.tuples(BYTES, BYTES).map(lambda sizes: Memory(min(sizes), max(sizes)))
FIGURES = st.lists(st.tuples(MEMORIES, BYTES), max_size=4)


def judged(figures: list[tuple[Memory, int]], silent_bytes: int = 0, *, is_resident: bool = True) -> Residency:
    return judge(figures, silent_bytes, is_resident=is_resident)


@pytest.mark.parametrize(
    ("memory", "answer"),
    [
        (Memory(400, 1000), Residency(is_resident=True, memory_bytes=600)),
        (Memory(100, 1000), Residency(is_resident=True, memory_bytes=600)),
        (Memory(401, 1000), Residency(is_resident=False, memory_bytes=599)),
        (Memory(1000, 1000), Residency(is_resident=False, memory_bytes=0)),
        (Memory(0, 0), Residency(is_resident=False, memory_bytes=0)),
    ],
    ids=["just ours", "others too", "a byte less", "all free", "cannot be asked"],
)
def test_a_model_of_600_bytes_is_there_while_so_much_is_in_use(memory: Memory, answer: Residency) -> None:
    assert judged([(memory, 600)]) == answer


def test_one_device_that_lost_its_part_is_enough() -> None:
    there, gone = (Memory(0, 1000), 600), (Memory(990, 1000), 300)
    assert judged([there, gone]) == Residency(is_resident=False, memory_bytes=610)


def test_nothing_makes_a_model_resident_that_was_not_when_it_was_loaded() -> None:
    assert judged([(Memory(0, 1000), 600)], is_resident=False) == Residency(is_resident=False, memory_bytes=600)


@given(figures=FIGURES, silent_bytes=BYTES)
def test_no_more_is_reported_than_was_put_there_and_all_of_it_while_it_is_there(
    figures: list[tuple[Memory, int]], silent_bytes: int
) -> None:
    answer = judged(figures, silent_bytes)
    put_bytes = silent_bytes + sum(size_bytes for _, size_bytes in figures)
    assert silent_bytes <= answer.memory_bytes <= put_bytes
    if answer.is_resident:
        assert answer.memory_bytes == put_bytes


@given(memory=MEMORIES, size_bytes=st.integers(1, 2**40), taken=BYTES)
def test_memory_that_others_take_never_makes_ours_leave(memory: Memory, size_bytes: int, taken: int) -> None:
    fuller = Memory(max(0, memory.free_bytes - taken), memory.total_bytes)
    assert judged([(fuller, size_bytes)]).is_resident >= judged([(memory, size_bytes)]).is_resident


def test_a_device_that_calls_all_its_memory_free_is_not_trusted() -> None:
    """ggml's CPU is such a one, and so stands here for a GPU without a memory budget."""
    cpu = choose_device("cpu", devices())
    assert memory_of(cpu).in_use_bytes == 0
    ask = residency_on([(cpu, 600)], memory_of, is_resident=True)
    assert ask() == ask() == Residency(is_resident=True, memory_bytes=600)
