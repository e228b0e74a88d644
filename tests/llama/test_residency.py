"""Where a model is, by the figures of the devices it was loaded to."""

import pytest
from hypothesis import given
from hypothesis import settings as law
from hypothesis import strategies as st

from worker.llama.devices import Memory, choose_device, devices, memory_of
from worker.llama.residency import Holding, judge, residency_on
from worker.wire.messages import Residency

BYTES = st.integers(0, 2**40)
MEMORIES = st.tuples(BYTES, BYTES).map(lambda sizes: Memory(min(sizes), max(sizes)))
FIGURES = st.lists(st.tuples(MEMORIES, BYTES), max_size=4)

MANY = law(derandomize=True, deadline=None)


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


@MANY
@given(figures=FIGURES, silent_bytes=BYTES)
def test_no_more_is_told_than_was_put_there_and_all_of_it_while_it_is_there(
    figures: list[tuple[Memory, int]], silent_bytes: int
) -> None:
    answer = judged(figures, silent_bytes)
    put_bytes = silent_bytes + sum(size_bytes for _, size_bytes in figures)
    assert silent_bytes <= answer.memory_bytes <= put_bytes
    if answer.is_resident:
        assert answer.memory_bytes == put_bytes


@MANY
@given(memory=MEMORIES, size_bytes=st.integers(1, 2**40), taken=BYTES)
def test_memory_that_others_take_never_makes_ours_leave(memory: Memory, size_bytes: int, taken: int) -> None:
    fuller = Memory(max(0, memory.free_bytes - taken), memory.total_bytes)
    assert judged([(fuller, size_bytes)]).is_resident >= judged([(memory, size_bytes)]).is_resident


def test_a_device_that_calls_all_its_memory_free_is_not_believed() -> None:
    """ggml's CPU is such a one, and so stands here for a GPU without a memory budget."""
    cpu = choose_device("cpu", devices())
    assert memory_of(cpu).in_use_bytes == 0
    ask = residency_on([Holding(cpu, 600)], is_resident=True)
    assert ask() == ask() == Residency(is_resident=True, memory_bytes=600)
