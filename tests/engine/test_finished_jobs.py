"""The cells of finished jobs are copied out later on a CPU: no token waits for it, and they are found meanwhile.

Recurrent states are copied right after the report of the step, because the next job may need the slot.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import CELL_BYTES, Request
from tests.engine.rig import Rig
from worker.engine.checkpoints import Stops
from worker.engine.prefix_cache import MAX_DEAD, MIN_KEPT, PART
from worker.engine.sequence import State
from worker.wire.jobs import Finished, JobKey, StepDone, TokenId
from worker.wire.messages import Outbound

LAW = settings(max_examples=60)
PLENTY = 10**6


def request(start: int, n_prompt: int, max_tokens: int = 1) -> Request:
    """A prompt that has nothing in common with another start's."""
    return Request((10 + start, *((i * i) % 90 for i in range(n_prompt - 1))), max_tokens, seed=start)


class Watched(Rig):
    """A rig that notes how many cells were copied out, and how many were dead, when a step was reported."""

    def __init__(self, *, n_retained: int = 8, n_cells: int = 40_000, stops: Stops | None = None) -> None:
        super().__init__(
            context_length=n_cells,
            n_cells=n_cells,
            prefix_cache_bytes=PLENTY * CELL_BYTES,
            n_retained=n_retained,
            widest_step=512,
            chunk=64,
            stops=stops,
        )
        self.n_saved_when_told: list[int] = []
        self.n_states_when_told: list[int] = []
        self.n_dead_when_told: list[int] = []

    def _hear(self, frame: Outbound) -> None:
        super()._hear(frame)
        if isinstance(frame, StepDone) and frame.kind is not None:
            self.n_saved_when_told.append(self.runner.kv.n_saved)
            self.n_states_when_told.append(self.runner.kv.n_states_saved)
            self.n_dead_when_told.append(self.engine.prefix_cache.n_dead_cells)


def waits_for_first_token(rig: Rig) -> bool:
    running = rig.engine.scheduler.running.values()
    return any(one.state is not State.DECODE and not one.generated for one in running)


@LAW
@given(
    jobs=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 12)), min_size=1, max_size=8),
    n_apart=st.integers(0, 5),
)
def test_a_steps_results_are_reported_before_anything_is_copied(jobs: list[tuple[int, int]], n_apart: int) -> None:
    rig = Watched()
    coming = [request(i, *lengths) for i, lengths in enumerate(jobs)]
    while coming or not rig.engine.is_idle:
        if coming:
            rig.submit(coming.pop(0))
        for _ in range(n_apart + 1):
            n_saved, n_told = rig.runner.kv.n_saved, len(rig.n_saved_when_told)
            n_dead, was_waiting = rig.engine.prefix_cache.n_dead_cells, waits_for_first_token(rig)
            rig.step()
            assert all(n == n_saved for n in rig.n_saved_when_told[n_told:])
            assert rig.runner.kv.n_saved - n_saved <= PART
            n_dead = max(n_dead, *rig.n_dead_when_told[n_told:], rig.engine.prefix_cache.n_dead_cells)
            if was_waiting and waits_for_first_token(rig) and n_dead < MAX_DEAD:
                assert rig.runner.kv.n_saved == n_saved, "a job waits for its first token"
    rig.run_until_idle()
    rig.check_stories()


@LAW
@given(
    jobs=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 12)), min_size=1, max_size=8),
    n_apart=st.integers(0, 5),
    cancelled=st.sets(st.integers(0, 7)),
)
def test_a_steps_results_are_reported_before_a_state_is_copied_and_no_copy_is_left_to_make(
    jobs: list[tuple[int, int]], n_apart: int, cancelled: set[int]
) -> None:
    rig = Watched(n_retained=0, stops=Stops(stride=256))
    coming = [request(i, *lengths) for i, lengths in enumerate(jobs)]
    job = JobKey(0)
    while coming or not rig.engine.is_idle:
        if coming:
            job = rig.submit(coming.pop(0))
        for _ in range(n_apart + 1):
            n_states, n_told = rig.runner.kv.n_states_saved, len(rig.n_states_when_told)
            rig.step()
            assert all(n == n_states for n in rig.n_states_when_told[n_told:])
            assert not rig.engine.prefix_cache.retained
        if job in cancelled:
            rig.cancel(job)
            # Otherwise the copy is made before another job gets the slot, or after the next report.
            rig.engine.tidy()
    rig.run_until_idle()
    assert not rig.engine.prefix_cache.retained
    for story, asked in zip(rig.stories, rig.requests, strict=True):
        if isinstance(story.end, Finished) and len(asked.prompt) >= MIN_KEPT:
            assert rig.engine.prefix_cache.index.match(list(map(TokenId, asked.prompt))) == len(asked.prompt), (
                "it was kept"
            )
    rig.check_stories()


def test_what_a_job_has_left_is_found_at_once_and_without_a_copy() -> None:
    rig = Watched()
    rig.submit(request(0, 30, max_tokens=200))
    long = request(1, 600)
    rig.submit(long)
    while rig.stories[1].end is None:
        rig.step()
    n_saved = rig.runner.kv.n_saved
    again = rig.submit(Request((*long.prompt, 5, 6), max_tokens=2, seed=3))
    rig.step()
    assert rig.n_cached[again] == 600
    assert rig.runner.kv.n_saved - n_saved <= PART
    rig.run_until_idle()
    rig.check_stories()


def test_cells_wait_for_their_copies_while_a_job_waits_for_a_token_and_no_longer() -> None:
    rig = Watched()
    rig.submit(request(0, 300, max_tokens=6))
    rig.step()
    rig.submit(request(1, 2_000, max_tokens=3))
    while rig.stories[0].end is None:
        rig.step()
    assert waits_for_first_token(rig)
    while waits_for_first_token(rig):
        assert (rig.runner.kv.n_saved, rig.engine.prefix_cache.n_dead_cells) == (0, 305)
        rig.step()
    rig.run_until_idle()
    assert rig.runner.kv.n_saved == 305
    assert len(rig.engine.prefix_cache.retained) == 1, "the last one's stay"


def test_more_cells_than_attention_should_walk_past_do_not_wait() -> None:
    rig = Watched()
    rig.submit(request(0, MAX_DEAD + 100, max_tokens=2))
    rig.step()
    rig.submit(request(1, 9_000, max_tokens=1))
    while rig.stories[0].end is None:
        rig.step()
    for _ in range(6):
        rig.step()
    assert waits_for_first_token(rig)
    assert rig.runner.kv.n_saved > 0
    rig.run_until_idle()
    rig.check_stories()


@pytest.mark.parametrize("n_retained", [0, 1, 2])
def test_without_a_slot_to_wait_in_cells_are_copied_at_once(n_retained: int) -> None:
    rig = Watched(n_retained=n_retained)
    for i in range(4):
        rig.submit(request(i, 40, max_tokens=4))
    rig.submit(request(9, 3_000, max_tokens=1))
    while any(rig.stories[i].end is None for i in range(4)):
        rig.step()
    index = rig.engine.prefix_cache.index
    assert index.n_tokens >= (4 - n_retained) * 43
    rig.run_until_idle()
    assert all(index.match(rig._tokens[JobKey(i)]) >= 43 for i in range(4)), "all are kept in the end"


def test_cells_that_wait_are_evicted_for_running_jobs() -> None:
    rig = Watched(n_cells=700)
    for i in range(3):
        rig.submit(request(i, 150, max_tokens=2))
    while not rig.engine.is_idle:
        rig.step()
    assert rig.engine.prefix_cache.n_dead_cells > 0
    last = rig.submit(request(7, 600, max_tokens=60))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.stories[last].end is not None
    assert rig.n_victims == 0


def test_a_cancelled_jobs_cells_wait_too() -> None:
    rig = Watched()
    rig.submit(request(0, 300, max_tokens=50))
    rig.submit(request(1, 300, max_tokens=50))
    for _ in range(8):
        rig.step()
    rig.cancel(JobKey(0))
    assert rig.runner.kv.n_saved == 0
    again = rig.submit(request(0, 301, max_tokens=2))
    rig.step()
    assert rig.n_cached[again] == 300
    rig.run_until_idle()
