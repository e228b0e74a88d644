"""The memory that only counts has the same counts as the tests' readable one, whatever is done to both."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.engine.fake_runner import Copy as ReadableCopy
from tests.engine.fake_runner import FakeKv
from tests.tools.fleet_sim.made import COSTS
from tools.fleet_sim.sim_worker import Clock, Copy, SimKv
from worker.wire.jobs import SlotId, TokenId

SLOTS = st.integers(0, COSTS.parallel).map(SlotId)


class Both(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counted = SimKv(COSTS, Clock())
        self.readable = FakeKv(n_slots=COSTS.n_all_slots, n_cells=COSTS.cells, can_share=True)
        self.saved: list[tuple[Copy, ReadableCopy]] = []

    def n_tokens(self, slot: SlotId) -> int:
        return len(self.readable.cells[slot])

    @rule(slot=SLOTS, n=st.integers(1, 20))
    def compute(self, slot: SlotId, n: int) -> None:
        self.counted.hold(slot, n)
        self.readable.hold(slot, [TokenId(1)] * n)
        self.check()

    @rule(slot=SLOTS, data=st.data())
    def trim(self, slot: SlotId, data: st.DataObject) -> None:
        n_keep = data.draw(st.integers(0, self.n_tokens(slot)))
        self.counted.trim(slot, n_keep)
        self.readable.trim(slot, n_keep)
        self.check()

    @rule(source=SLOTS, empty=SLOTS, data=st.data())
    def share(self, source: SlotId, empty: SlotId, data: st.DataObject) -> None:
        if self.n_tokens(source) and not self.n_tokens(empty):
            n = data.draw(st.integers(1, self.n_tokens(source)))
            self.counted.share(source, empty, n)
            self.readable.share(source, empty, n)
        self.check()

    @rule(slot=SLOTS)
    def save(self, slot: SlotId) -> None:
        if self.n_tokens(slot):
            self.saved.append((self.counted.save(slot, 0), self.readable.save(slot, 0)))
            assert self.saved[-1][0].n_tokens == self.saved[-1][1].n_tokens

    @precondition(lambda self: self.saved)
    @rule(slot=SLOTS, data=st.data())
    def load(self, slot: SlotId, data: st.DataObject) -> None:
        counted, readable = data.draw(st.sampled_from(self.saved))
        if not self.n_tokens(slot) and counted.n_tokens <= self.counted.n_free_cells:
            self.counted.load(slot, [counted], counted.n_tokens)
            self.readable.load(slot, [readable], readable.n_tokens)
        self.check()

    def check(self) -> None:
        assert self.counted.count_tokens() == self.readable.count_tokens()
        assert self.counted.n_free_cells == self.readable.n_free_cells


def test_cells_are_counted_as_the_readable_memory_has_them() -> None:
    run_state_machine_as_test(Both, settings=settings(max_examples=40, stateful_step_count=20))
