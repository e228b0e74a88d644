"""The index with recurrent states: what it finds is there and is the last, and it keeps its limit, whatever comes."""

from dataclasses import dataclass, field
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_cells import PLENTY, Memory, Tokens, ids
from worker.engine.checkpoints import NEAR
from worker.engine.state_cache import LAST_KEPT, StateIndex
from worker.wire.jobs import TokenId

LAW = settings(max_examples=200)


@dataclass(eq=False, slots=True, weakref_slot=True)
class ToyState:
    path: Tokens
    n_bytes: int

    @property
    def n_tokens(self) -> int:
        return len(self.path)


@dataclass
class States:
    n_bytes: int
    alive: WeakSet[ToyState] = field(default_factory=WeakSet)

    def after(self, path: Tokens) -> ToyState:
        state = ToyState(path, self.n_bytes)
        self.alive.add(state)
        return state


def keep(index: StateIndex, memory: Memory, states: States, path: Tokens) -> None:
    n_known = index.match(path)
    if n_known < len(path):
        index.insert(path, n_known, memory.save(path, n_known))
    if index.match(path) == len(path):
        index.add_checkpoint(path, states.after(path))


paths = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=5).map(
    lambda runs: tuple(TokenId(token) for token, n in runs for _ in range(n))
)


@pytest.mark.long
@LAW
@given(
    kept=st.lists(paths, max_size=20),
    queries=st.lists(paths, min_size=1, max_size=5),
    limit_cells=st.sampled_from((0, 10, 40, 100, 1000)),
    state_bytes=st.sampled_from((1, 60, 300)),
    header_bytes=st.sampled_from((0, 15)),
    stride=st.sampled_from((1, 8, 100)),
)
def test_what_is_found_is_there_and_the_limit_holds(
    *, kept: list[Tokens], queries: list[Tokens], limit_cells: int, state_bytes: int, header_bytes: int, stride: int
) -> None:
    index, memory = StateIndex(10 * limit_cells, stride=stride, reach=NEAR), Memory(header_bytes)
    states = States(state_bytes)
    for path in kept:
        keep(index, memory, states, path)
        n_states_bytes = sum(state.n_bytes for state in states.alive)
        assert index.n_bytes == memory.n_alive_bytes + n_states_bytes <= index.limit_bytes
        assert index.n_tokens == memory.n_alive_tokens
    for query in queries:
        found = index.checkpoint(query)
        fitting = [state for state in states.alive if state.path == query[: len(state.path)]]
        assert found is max(fitting, key=lambda state: state.n_tokens, default=None)
        assert found is None or index.match(query) >= found.n_tokens
        if found is not None:
            parts = index.take(query, found.n_tokens)
            assert sum(part.n_tokens for part in parts) >= found.n_tokens


def ladder(index: StateIndex, n_steps: int, state_bytes: int = 1) -> States:
    """A path with a checkpoint each ten tokens."""
    memory, states = Memory(), States(state_bytes)
    for n in range(10, 10 * n_steps + 1, 10):
        keep(index, memory, states, ids(range(n)))
    return states


def test_the_last_checkpoints_stay_and_of_the_others_one_each_stride() -> None:
    states = ladder(StateIndex(PLENTY, stride=40, reach=NEAR), 20)
    kept = sorted(state.n_tokens for state in states.alive)
    assert kept[-LAST_KEPT:] == [180, 190, 200]
    assert kept[:-LAST_KEPT] == [40, 80, 120, 160]


def test_where_paths_part_a_checkpoint_stays() -> None:
    index, memory, states = StateIndex(PLENTY, stride=PLENTY, reach=NEAR), Memory(), States(1)
    keep(index, memory, states, ids(range(10)))
    keep(index, memory, states, ids([*range(10), 99]))
    for n in range(20, 100, 10):
        keep(index, memory, states, ids(range(n)))
    assert index.checkpoint(ids([*range(10), 98])) is not None


@pytest.mark.parametrize(("n_behind", "stays"), [(0, True), (NEAR - 1, True), (NEAR, False)])
def test_so_does_one_shortly_before(n_behind: int, stays: bool) -> None:
    index, memory, states = StateIndex(PLENTY, stride=PLENTY, reach=NEAR), Memory(), States(1)
    keep(index, memory, states, ids(range(10)))
    keep(index, memory, states, ids([*range(10 + n_behind), 99]))
    for n in range(100, 150, 10):
        keep(index, memory, states, ids(range(n)))
    assert (index.checkpoint(ids(range(11))) is not None) == stays


def test_earlier_checkpoints_of_a_path_make_room_for_its_end() -> None:
    index = StateIndex(10 * 100 + 2 * 300, stride=1, reach=NEAR)
    states = ladder(index, 10, state_bytes=300)
    assert sorted(state.n_tokens for state in states.alive) == [90, 100]
    assert index.match(ids(range(100))) == 100
