"""Models with recurrent state: jobs begin at checkpoints, which lie where prompts part. The rig checks each state.

The index of these finds what is there and last, and keeps its limit.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_cells import PLENTY, Memory, Tokens, ids
from tests.engine.fake_runner import Request
from tests.engine.rig import Rig
from worker.engine.caches import LAST_KEPT, StateIndex
from worker.engine.channels import ChannelText
from worker.engine.checkpoints import GRAIN, LAST, MIN_APART, NEAR, Stops
from worker.engine.sequence import Sequence
from worker.wire.jobs import JobKey, SamplingParams, TokenId

END = TokenId(7)
"""The token that ends a message."""
STOPS = Stops(stride=256, message_ends={END})


def rig_of(**changes: int | bool) -> Rig:
    sizes = {"context_length": 2000, "n_cells": 8000, "chunk": 64, "n_retained": 0, "prefix_cache_bytes": PLENTY}
    return Rig(stops=STOPS, **{**sizes, **changes})  # type: ignore[arg-type]  # mixed on purpose


def words(start: int, n: int) -> tuple[int, ...]:
    return tuple(10 + (start + i * i) % 90 for i in range(n))


def message(start: int, n: int) -> tuple[int, ...]:
    return (*words(start, n - 1), END)


def said(rig: Rig, prompt: tuple[int, ...], n_tokens: int) -> tuple[int, ...]:
    """The prompt and its answer, when all is done."""
    job = rig.submit(Request(prompt, n_tokens))
    rig.run_until_idle()
    rig.check_story(job)
    return (*prompt, *rig.model.answer_of(prompt, n_tokens))


def test_a_conversation_computes_each_token_once() -> None:
    rig, n_new = rig_of(), 0
    told: tuple[int, ...] = ()
    for turn in range(20):
        told += message(turn, 40)
        n_before = rig.runner.n_computed
        told = said(rig, told, 30)
        n_new += 70
        assert rig.runner.n_computed - n_before <= 71, "the last token of each answer is computed with the next turn"
    assert rig.runner.n_computed <= n_new


def test_a_next_turn_may_leave_out_what_the_last_one_reasoned() -> None:
    """The new prompt parts from the old one in its last tokens, behind the last message."""
    rig = rig_of()
    head = (*message(1, 200), *message(2, 100))
    said(rig, (*head, 5, 5, 5), 50)
    said(rig, (*head, 6, *message(3, 60)), 1)
    assert rig.n_cached[JobKey(1)] == len(head)


def test_a_prompt_again_and_one_that_parts_from_it_begin_near_where_they_can() -> None:
    """There are no messages. The third prompt with the same beginning finds all of it."""
    rig = rig_of()
    common = words(1, 700)
    said(rig, common, 1)
    said(rig, common, 1)
    assert len(common) - rig.n_cached[JobKey(1)] <= 8
    for job in range(2, 5):
        said(rig, (*common[:600], *words(job, 50)), 1)
    assert rig.n_cached[JobKey(2)] == 512, "at the stride"
    assert rig.n_cached[JobKey(3)] == rig.n_cached[JobKey(4)] == 600


def test_prompts_that_come_together_compute_what_they_have_in_common_once() -> None:
    """Eight at once follow the first to where they part, and its cells are shared."""
    rig = rig_of(prefix_cache_bytes=PLENTY)
    for i in range(8):
        rig.submit(Request((*words(1, 500), 9 - i, *words(i, 40)), 4))
    while len(rig.started) < 8:
        rig.step()
    assert rig.runner.n_computed <= 500 + 8 * 45
    assert rig.runner.kv.n_cells_used <= 500 + 8 * 45
    rig.run_until_idle()
    rig.check_stories()


def test_one_that_has_passed_the_place_where_prompts_part_is_not_followed() -> None:
    """One of those that come next takes its place, and the others follow that."""
    rig = Rig(
        stops=Stops(stride=8192),
        context_length=2000,
        n_cells=8000,
        chunk=512,
        n_retained=0,
        prefix_cache_bytes=PLENTY,
    )
    prompts = [(*words(1, 400), 9 - i, *words(i, 200)) for i in range(5)]
    rig.submit(Request(prompts[0], 4))
    rig.step()
    for prompt in prompts[1:]:
        rig.submit(Request(prompt, 4))
    rig.run_until_idle()
    rig.check_stories()
    assert [rig.n_cached[JobKey(job)] for job in range(5)] == [0, 0, 400, 400, 400]


@pytest.mark.parametrize("n_common", range(600, 600 + GRAIN - 1))
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 3, 0, 2), (2, 3, 1, 0), (3, 0, 2, 1)])
def test_two_that_have_a_token_more_in_common_help_the_others(n_common: int, order: tuple[int, ...]) -> None:
    """After two prompts with one beginning each further one finds nearly all of it, whatever else two of them share."""
    rig = rig_of()
    ends = ((1,), (2,), (3, 3), (3, 4))
    for i in order:
        said(rig, (*words(1, n_common), *ends[i], *words(50 + i, 60)), 1)
    assert min(rig.n_cached[JobKey(job)] for job in (2, 3)) > n_common - GRAIN


def test_where_messages_part_prompts_begin_at_the_end_of_the_one_before() -> None:
    """The last messages of the first two prompts begin alike, and those of the others do not."""
    rig = rig_of()
    head = (*message(1, 200), *message(2, 240))
    for i, start in enumerate((1, 1, 2, 3)):
        said(rig, (*head, 8, 8, *words(start, 20), *words(40 + i, 60), END, 8, 8), 1)
    assert [rig.n_cached[JobKey(job)] for job in (2, 3)] == [len(head)] * 2


@pytest.mark.parametrize("n_tokens", range(2, 16))
def test_a_place_where_prompts_part_outlives_the_end_of_the_one_that_came_to_it_first(n_tokens: int) -> None:
    """The first job ends while the second reads what its prompt has of its own, of which the index knows nothing."""
    rig, common = rig_of(), words(1, 400)
    rig.submit(Request((*common, 1, *words(2, 200)), n_tokens))
    while not rig.started:
        rig.step()
    rig.submit(Request((*common, 2, *words(3, 1200)), 2))
    while rig.engine.scheduler.find(JobKey(0)) is not None:
        rig.step()
    rig.submit(Request((*common, 3, *words(4, 50)), 2))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.n_cached[JobKey(2)] == len(common)


def test_one_that_follows_its_like_adds_no_checkpoint_beside_the_last_one() -> None:
    rig = rig_of(prefix_cache_bytes=PLENTY)
    prompt = words(1, 1001)
    for _ in range(2):
        rig.submit(Request(prompt, 2))
    while not rig.engine.is_idle:
        rig.step()
        for sequence in rig.engine.scheduler.running.values():
            assert all(later - stop >= MIN_APART for stop, later in pairwise(sequence.stops))
    rig.check_stories()
    assert rig.n_cached[JobKey(1)] >= len(prompt) - LAST


def test_so_they_do_without_any_cache() -> None:
    """The state goes from slot to slot."""
    rig = rig_of(prefix_cache_bytes=0)
    for _ in range(4):
        rig.submit(Request(words(1, 500), 4))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.runner.n_computed <= 500 + 4 * 8
    assert rig.runner.kv.n_states_saved == 0


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_paused_jobs_go_on_where_they_were(is_deterministic: bool) -> None:
    """None is paused with fixed steps."""
    rig = rig_of(n_slots=2, n_cells=4000, is_deterministic=is_deterministic)
    prompts = [words(start, 100) for start in range(5)]
    for i, prompt in enumerate(prompts):
        rig.submit(Request(prompt, 1500, seed=i))
    rig.run_until_idle()
    rig.check_stories()
    assert bool(rig.n_preempted) is not is_deterministic
    assert rig.runner.n_computed <= 5 * 1600 + 20 * rig.n_preempted


@given(
    lengths=st.lists(st.integers(1, 400), max_size=6),
    n_rest=st.integers(1, 300),
    n_cached=st.integers(0, 500),
    n_alike=st.integers(0, 1500),
    grain=st.sampled_from((1, 64)),
)
def test_stops_are_few_and_within_the_prompt(
    lengths: list[int], n_rest: int, n_cached: int, n_alike: int, grain: int
) -> None:
    prompt = [TokenId(token) for n in lengths for token in message(0, n)] + [TokenId(9)] * n_rest
    sequence = sequence_of(prompt)
    sequence.n_computed = min(n_cached, len(prompt) - 1)
    n_alike = min(n_alike, len(prompt) - 1)
    stops = Stops(stride=256, grain=grain, message_ends={END}).of(sequence, n_alike)
    assert list(stops) == sorted(set(stops))
    edges = [sequence.n_computed, *stops]
    assert all(later - earlier >= MIN_APART for earlier, later in zip(edges, stops, strict=False))
    assert all(stop < len(prompt) and stop % grain == 0 for stop in stops)
    assert len(stops) <= 4 + len(prompt) // 256
    if grain == 1 and n_alike >= sequence.n_computed + MIN_APART + NEAR:
        assert any(n_alike - NEAR < stop <= n_alike for stop in stops)


def sequence_of(prompt: list[TokenId]) -> Sequence:
    return Sequence(JobKey(0), prompt, 1, SamplingParams(seed=0), ChannelText(()))


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


@pytest.mark.parametrize(("n_behind", "stays"), [(0, True), (NEAR - 1, True), (NEAR, False)])
def test_a_checkpoint_stays_where_paths_part_or_shortly_before(n_behind: int, stays: bool) -> None:
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
