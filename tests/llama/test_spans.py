"""Shared positions are compared with lists of single cells, which cannot be wrong."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.company import N_SLOTS, PlainCells
from worker.llama.kv import Spans
from worker.wire.jobs import SlotId

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
    """And a slot has no more spans than slots could share: what those who left had cut is joined again."""
    spans, plain = Spans(N_SLOTS), PlainCells(N_SLOTS)
    for op in ops:
        apply(op, spans, plain)
    check(spans, plain)
    in_order = list(spans.in_order())
    assert all(sum(slot in span.slots for span in in_order) <= N_SLOTS for slot in range(N_SLOTS))
    spans.clear()
    assert spans.n_cells == len(list(spans.in_order())) == 0
