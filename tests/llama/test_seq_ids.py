"""A model's memory gets seq_ids for slots, spares, twins, and a slot for cells that linger.

Positions that are shared are compared with lists of single cells, which cannot be wrong.
"""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.company import N_SLOTS, PlainCells
from worker.llama.kv import Spans
from worker.llama.model import Model
from worker.llama.seq_ids import n_retained_for, seq_ids_of
from worker.models.upstream.numbers import MAX_SEQ_IDS
from worker.wire.jobs import SlotId


def model(backend: str = "cpu", *, is_hybrid: bool = False, **changes: object) -> Model:
    """The facts that are asked of a model."""
    device = SimpleNamespace(backend=backend, is_gpu=backend != "cpu")
    facts = {"device": device, "can_rewind": not is_hybrid, "is_hybrid": is_hybrid, "n_swa": 0, "architecture": "llama"}
    return cast(Model, SimpleNamespace(**facts | changes))


@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal", "vulkan"])
@pytest.mark.parametrize("n_swa", [0, 128])
def test_on_every_device_cells_may_linger_where_the_memory_can_be_cut(backend: str, n_swa: int) -> None:
    n_retained = n_retained_for(model(backend, n_swa=n_swa), 8, swa_full=True)
    assert n_retained == (8 if backend == "cpu" else 16)


@pytest.mark.parametrize(("architecture", "n_spare"), [("lfm2", 2), ("glm5-next", 0), ("deepseek4", 0)])
def test_there_are_spare_ones_where_copies_of_a_state_can_be_kept(architecture: str, n_spare: int) -> None:
    """An index or compressed cells would have to be copied with it. A spare one has a state of its own."""
    assert seq_ids_of(model(is_hybrid=True, architecture=architecture), 8, swa_full=True).n_spare == n_spare


def test_nothing_lingers_in_a_memory_that_cannot_be_cut() -> None:
    assert not n_retained_for(model(can_rewind=False), 8, swa_full=True)
    assert not n_retained_for(model(n_swa=128), 8, swa_full=False)


def test_a_slot_with_recurrent_state_is_not_kept_but_cells_beside_it_are_copied() -> None:
    """Each sequence id has a state of its own, if it needs one or not."""
    for backend, n_spare in (("cpu", 2), ("cuda", 1)):
        hybrid, recurrent = model(backend, is_hybrid=True), model(backend, can_rewind=False)
        assert seq_ids_of(hybrid, 8, swa_full=True).n_spare == n_spare
        assert seq_ids_of(recurrent, 8, swa_full=True).n_all == 8
        assert not n_retained_for(hybrid, 8, swa_full=True)
        assert not seq_ids_of(model(backend, is_hybrid=True, n_swa=128), 8, swa_full=True).n_spare


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("n_swa", [0, 128])
def test_no_more_are_used_than_the_library_has_and_a_slot_more_takes_no_spare(backend: str, n_swa: int) -> None:
    asked = model(backend, n_swa=n_swa)
    for n_slots in range(1, MAX_SEQ_IDS + 1):
        own = seq_ids_of(asked, n_slots, swa_full=True)
        assert own.n_all <= MAX_SEQ_IDS
        n_retained = n_retained_for(asked, n_slots, swa_full=True)
        with_retained = seq_ids_of(asked, n_slots + n_retained, swa_full=True)
        assert (with_retained.n_all <= MAX_SEQ_IDS, with_retained.n_spare) == (True, own.n_spare)
        padded = seq_ids_of(asked, n_slots, swa_full=True, has_padding=True)
        assert (padded.n_all <= MAX_SEQ_IDS, padded.n_spare) == (True, own.n_spare)


# ── shared positions ─────────────────────────────────────────────────────────────────────────────

SLOTS = st.integers(0, N_SLOTS - 1).map(SlotId)

Op = tuple[str, SlotId, SlotId, int]
OPS = st.lists(st.tuples(st.sampled_from(["grow", "share", "cut"]), SLOTS, SLOTS, st.integers(0, 12)), max_size=40)


def apply(op: Op, spans: Spans, plain: PlainCells) -> None:
    """Apply the operation if it is possible."""
    kind, slot, other, n = op
    held = plain.of[slot]
    if kind == "grow" and n:
        spans.grow(slot, n)
        plain.grow(slot, n)
    elif kind == "share" and 0 < n <= len(held) and not plain.of[other]:
        spans.share(slot, other, n)
        plain.share(slot, other, n)
    elif kind == "cut" and n <= len(held):
        spans.cut(slot, n)
        plain.cut(slot, n)


def check(spans: Spans, plain: PlainCells) -> None:
    assert spans.n_cells == plain.n_cells
    for slot in map(SlotId, range(N_SLOTS)):
        assert spans.n_held(slot) == len(plain.of[slot])
        assert spans.n_shared(slot) == plain.n_shared(slot)
    reached = [0] * N_SLOTS
    for span in spans.in_order():
        cells = {tuple(plain.of[slot][span.start : span.end]) for slot in span.slots}
        assert len(cells) == 1, "they are the same cells"
        assert not any(set(*cells) & set(plain.of[slot]) for slot in range(N_SLOTS) if slot not in span.slots)
        for slot in span.slots:
            assert reached[slot] == span.start, "what lies before it came before"
            reached[slot] = span.end
    assert reached == [len(cells) for cells in plain.of]


@settings(max_examples=200)
@given(ops=OPS)
def test_every_cell_is_counted_once_however_many_share_it(ops: list[Op]) -> None:
    """A slot has no more spans than slots could share: what those who left had cut is joined again."""
    spans, plain = Spans(N_SLOTS), PlainCells(N_SLOTS)
    for op in ops:
        apply(op, spans, plain)
    check(spans, plain)
    in_order = list(spans.in_order())
    assert all(sum(slot in span.slots for span in in_order) <= N_SLOTS for slot in range(N_SLOTS))
    spans.clear()
    assert spans.n_cells == len(list(spans.in_order())) == 0
