"""Which slots have which positions in common: counts only, no cell is touched here.

Owns the bookkeeping behind kv.py. Pure; the same thread's.

Slots only ever share from position 0 on, so the spans of all slots form a tree, and a span stands at the same place in
the list of each slot that has it:

    slot 0:  [0, 400) of {0, 1, 2} · [400, 408) of {0}
    slot 1:  [0, 400) of {0, 1, 2} · [400, 420) of {1, 2} · [420, 431) of {1}
    slot 2:  [0, 400) of {0, 1, 2} · [400, 420) of {1, 2}
"""

from collections.abc import Iterator
from dataclasses import dataclass

from worker.wire.messages import SlotId


@dataclass(slots=True, eq=False)
class Span:
    """Positions [start, end) whose cells belong to all of `slots`, and to no other."""

    start: int
    end: int
    slots: set[SlotId]


class Spans:
    """Each slot's positions [0, n_held), without gaps."""

    def __init__(self, n_slots: int) -> None:
        self._of: list[list[Span]] = [[] for _ in range(n_slots)]
        self.n_cells = 0
        """Of all slots; what several have counts once."""

    def n_held(self, slot: SlotId) -> int:
        spans = self._of[slot]
        return spans[-1].end if spans else 0

    def grow(self, slot: SlotId, n_tokens: int) -> None:
        """The slot alone has so many more."""
        self.n_cells += n_tokens
        spans = self._of[slot]
        if spans and len(spans[-1].slots) == 1:
            spans[-1].end += n_tokens
        else:
            start = self.n_held(slot)
            spans.append(Span(start, start + n_tokens, {slot}))

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        """The empty `target` has the first `n_tokens` of `source` too, which has so many."""
        n_spans = self._split(source, n_tokens)
        self._of[target] = self._of[source][:n_spans]
        for span in self._of[target]:
            span.slots.add(target)

    def n_shared(self, slot: SlotId) -> int:
        """Positions [0, n_shared) of the slot belong to others too, those behind them to it alone."""
        spans = self._of[slot]
        if not spans:
            return 0
        return spans[-1].start if len(spans[-1].slots) == 1 else spans[-1].end

    def cut(self, slot: SlotId, n_keep: int) -> None:
        """The slot has its first `n_keep` positions left, n_keep <= n_held."""
        n_spans = self._split(slot, n_keep)
        left = self._of[slot][n_spans:]
        del self._of[slot][n_spans:]
        for span in left:
            span.slots.remove(slot)
        self.n_cells -= sum(span.end - span.start for span in left if not span.slots)
        still_held = [span for span in left if span.slots]
        if still_held:
            self._join(still_held[-1])

    def in_order(self) -> Iterator[Span]:
        """Each span once, after those that lie before it in its sequences."""
        seen: set[Span] = set()
        for spans in self._of:
            yield from (span for span in spans if span not in seen)
            seen.update(spans)

    def clear(self) -> None:
        self._of = [[] for _ in self._of]
        self.n_cells = 0

    def _split(self, slot: SlotId, at: int) -> int:
        """How many spans the slot has before position `at`, where one of them ends from now on."""
        for index, span in enumerate(self._of[slot]):
            if span.start >= at:
                return index
            if span.end > at:
                tail = Span(at, span.end, set(span.slots))
                for sharer in span.slots:
                    self._of[sharer].insert(index + 1, tail)
                span.end = at
                return index + 1
        return len(self._of[slot])

    def _join(self, span: Span) -> None:
        """Make one of the span and the next, where a slot that had only the first has left and now the same have both.

        So a slot has fewer spans than there are slots, however often its prefix was shared.
        """
        spans = self._of[next(iter(span.slots))]
        index = spans.index(span)
        if index + 1 < len(spans) and spans[index + 1].slots == span.slots:
            span.end = spans[index + 1].end
            for sharer in span.slots:
                del self._of[sharer][index + 1]
