"""Small jobs beside long ones that have all the slots or all the cells: a modelled machine, the real engine."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import CELL_BYTES, FakeRunner, ToyModel
from tests.queued import queued
from worker.config.engine_settings import Scheduling
from worker.engine.channels import ChannelText
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.scheduler import CELLS_PER_ROW, MAX_PASSED, MAX_PAUSES, QUANTUM, FairShares, FirstCome, policy_of
from worker.engine.sequence import Sequence
from worker.engine.step import Step
from worker.limits import DECODE_MARGIN
from worker.wire.jobs import JobKey, SamplingParams, SlotId, StepDone, TokenId
from worker.wire.messages import Outbound

STEP_S, DECODED_S, READ_S, COPIED_S = 3.6e-3, 3.9e-3, 3.1e-3, 12e-6
"""A small model on two cores: a step, each row of a decode and of a prefill step, and each cell out and in again."""


@dataclass(frozen=True, slots=True)
class Asked:
    n_prompt: int
    n_tokens: int
    at_s: float = 0.0
    n_pauses: int = 0
    """It counts as having been paused so often."""


@dataclass(slots=True)
class Setup:
    n_slots: int = 6
    n_cells: int = 8_000
    n_kept: int = 8_000
    """The number of cells of paused and finished jobs that main memory has room for."""
    scheduling: Scheduling = "fair"


class Run:
    """Jobs on the modelled machine, which is idle until the first of them comes."""

    def __init__(self, setup: Setup, asked: Seq[Asked]) -> None:
        self.asked = asked
        self.now_s = 0.0
        self.ended_s: dict[int, float] = {}
        self.n_seen = dict.fromkeys(range(len(asked)), 0)
        self.n_pauses = dict.fromkeys(range(len(asked)), 0)
        n_slots, n_cells = setup.n_slots, setup.n_cells
        config = EngineConfig(
            n_slots=n_slots,
            n_cells=n_cells,
            context_length=n_cells,
            chunk=32,
            widest_step=128,
            prefix_cache_bytes=setup.n_kept * CELL_BYTES,
            retained_slots=(SlotId(n_slots),),
            scheduling=setup.scheduling,
        )
        self._runner = FakeRunner.of(ToyModel(n_seen=1), config)
        self._n_copied = self._n_unused = 0
        self.policy = policy_of(config, can_keep=True)
        self._runner.before_run = self._take_time
        self.engine = Engine(self._runner, config, emit=self._hear, clock=lambda: self.now_s)
        self._play()

    def _play(self) -> None:
        due = sorted(range(len(self.asked)), key=lambda job: self.asked[job].at_s)
        while due or not self.engine.is_idle:
            if self.engine.is_idle:
                self.now_s = max(self.now_s, self.asked[due[0]].at_s)
            while due and self.asked[due[0]].at_s <= self.now_s:
                self._submit(due.pop(0))
            self.engine.step()
            for one in (*self.engine.scheduler.waiting, *self.engine.scheduler.running.values()):
                self.n_pauses[one.job] = one.n_pauses

    def _submit(self, job: int) -> None:
        asked = self.asked[job]
        prompt = [TokenId(1000 * (job + 1) + i) for i in range(asked.n_prompt)]
        self.engine.submit(queued(JobKey(job), prompt, asked.n_tokens, SamplingParams(seed=job)))
        sequence = self.engine.scheduler.find(JobKey(job))
        assert sequence is not None
        sequence.n_pauses = self.n_pauses[job] = asked.n_pauses

    def _take_time(self, step: Step) -> None:
        self._n_unused = self._n_unused + 1 if self._can_admit() else 0
        assert self._n_unused <= 1, "what a step has freed is used in the next"
        row_s = READ_S if step.kind == "prefill" else DECODED_S
        n_copied = self._runner.kv.n_saved - self._n_copied
        self._n_copied += n_copied
        self.now_s += STEP_S + row_s * step.n_tokens + COPIED_S * n_copied

    def _can_admit(self) -> bool:
        """True if the head of the queue has a slot and room, and no job was paused in this step."""
        scheduler = self.engine.scheduler
        if any(one.n_pauses > self.n_pauses[one.job] for one in scheduler.waiting):
            return False
        n_promised = sum(self.policy.cells_to_reserve(one) for one in scheduler.running.values())
        n_spare = self._runner.kv.n_free_cells - n_promised
        waiting, has_slot = scheduler.waiting, bool(scheduler.free_slots)
        return has_slot and bool(waiting) and self.policy.cells_to_reserve(waiting[0]) <= n_spare

    def _hear(self, frame: Outbound) -> None:
        if isinstance(frame, StepDone):
            for delta in frame.deltas:
                self.n_seen[delta.job] += 1
            for end in frame.finished:
                assert end.job not in self.ended_s, "a job ends once"
                self.ended_s[end.job] = self.now_s

    def took_s(self, job: int) -> float:
        return self.ended_s[job] - self.asked[job].at_s


LONG, SMALL = Asked(60, 300), Asked(24, 32)
SETUPS = {
    "5 long ones in 6 slots": (5, Setup()),
    "5 long ones in 512 cells": (5, Setup(n_cells=512, n_kept=4_000)),
    "8 long ones for 6 slots": (8, Setup()),
}


def last_s(run: Run, n_jobs: int) -> float:
    return max(run.ended_s[job] for job in range(n_jobs))


@pytest.mark.long
@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize(("small", "at_s"), [(Asked(8, 16), 4.0), (SMALL, 2.0), (Asked(60, 60), 3.0)])
def test_a_small_job_takes_at_most_twice_its_share_and_the_long_ones_lose_one_part_in_twenty(
    name: str, small: Asked, at_s: float
) -> None:
    n_long, setup = SETUPS[name]
    alone_s = Run(setup, [small]).took_s(0)
    asked = [*[LONG] * n_long, replace(small, at_s=at_s)]
    fair, first_come = Run(setup, asked), Run(replace(setup, scheduling="first-come"), asked)
    assert fair.took_s(n_long) <= 2 * (n_long + 1) * alone_s
    assert last_s(fair, n_long) <= 1.05 * last_s(first_come, n_long)


def test_first_come_lets_a_small_job_wait() -> None:
    n_long, setup = SETUPS["8 long ones for 6 slots"]
    run = Run(replace(setup, scheduling="first-come"), [*[LONG] * n_long, replace(SMALL, at_s=2.0)])
    assert run.took_s(n_long) > 2 * (n_long + 1) * Run(setup, [SMALL]).took_s(0)
    assert not any(run.n_pauses.values())


def test_equal_jobs_run_one_after_another() -> None:
    """No job would gain by pausing any of them."""
    run = Run(Setup(n_slots=4), [Asked(30, 60)] * 12)
    assert not any(run.n_pauses.values())


def test_small_jobs_without_end_do_not_keep_a_long_one_waiting() -> None:
    small = [Asked(8, 12, at_s=0.3 + 0.08 * i) for i in range(120)]
    run = Run(Setup(n_slots=2), [Asked(40, 120), Asked(40, 120), *small])
    assert last_s(run, 2) < run.ended_s[90]
    assert max(run.n_pauses.values()) <= MAX_PAUSES


SQUEEZED = {
    "slots are full": Setup(),
    "cells are full": Setup(n_cells=1_000, n_kept=4_000),
    "few slots": Setup(n_slots=2, n_cells=600, n_kept=4_000),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SQUEEZED)
@pytest.mark.parametrize("victim", [SMALL, Asked(200, 200)], ids=["small", "large"])
def test_a_client_that_fills_and_squeezes_takes_no_more_than_its_jobs_shares(name: str, victim: Asked) -> None:
    """One client fills the slots and cells with long jobs, and squeezes with small ones that preempt the others again
    and again ("fill and squeeze", arXiv 2602.07878). Another client's job takes at most three times its even share, and
    the pauses cost the machine little."""
    setup = SQUEEZED[name]
    fill = [LONG] * setup.n_slots
    squeeze = [Asked(8, 8, at_s=1.0 + 0.05 * i) for i in range(60)]
    asked = [*fill, replace(victim, at_s=2.0), *squeeze]
    alone_s = Run(setup, [victim]).took_s(0)
    run, first_come = Run(setup, asked), Run(replace(setup, scheduling="first-come"), asked)
    assert run.took_s(len(fill)) <= 3 * (setup.n_slots + 1) * alone_s
    assert max(run.n_pauses.values()) <= MAX_PAUSES
    assert max(run.ended_s.values()) <= 1.08 * max(first_come.ended_s.values())


@pytest.mark.long
def test_pauses_that_main_memory_has_no_room_for_are_bounded() -> None:
    """The worst that fill and squeeze does: each pause costs the victim all its cells, but no more than MAX_PAUSES
    times."""
    setup = Setup(n_slots=4, n_cells=600, n_kept=600)
    squeeze = [Asked(8, 8, at_s=1.0 + 0.05 * i) for i in range(200)]
    asked = [*[LONG] * setup.n_slots, Asked(200, 200, at_s=2.0), *squeeze]
    run, first_come = Run(setup, asked), Run(replace(setup, scheduling="first-come"), asked)
    assert max(run.n_pauses.values()) <= MAX_PAUSES
    assert max(run.ended_s.values()) <= 2 * max(first_come.ended_s.values())


LENGTHS = st.integers(1, 12) | st.integers(1, 90)
JOBS = st.builds(
    Asked,
    n_prompt=LENGTHS,
    n_tokens=LENGTHS,
    at_s=st.integers(0, 60).map(lambda i: i / 20),
    n_pauses=st.sampled_from((0, 0, MAX_PAUSES - 1, MAX_PAUSES)),
)


@pytest.mark.long
@settings(max_examples=100)
@given(
    asked=st.lists(JOBS, min_size=1, max_size=12),
    n_slots=st.integers(1, 5),
    n_spare_cells=st.sampled_from((0, 40, 200)),
    n_kept=st.sampled_from((20, 100, 2_000)),
    scheduling=st.sampled_from(get_args(Scheduling)),
)
def test_every_job_ends_once_with_all_its_tokens_after_a_bounded_number_of_pauses(
    *, asked: list[Asked], n_slots: int, n_spare_cells: int, n_kept: int, scheduling: Scheduling
) -> None:
    run = Run(Setup(n_slots, 180 + n_spare_cells, n_kept, scheduling), asked)
    assert run.n_seen == {job: each.n_tokens for job, each in enumerate(asked)}
    assert run.ended_s.keys() == run.n_seen.keys()
    if scheduling == "fair":
        assert max(run.n_pauses.values()) <= MAX_PAUSES


FAIR = FairShares()
MUCH = 100 * QUANTUM


def sequence(job: int, n_prompt: int = 10, max_tokens: int = 20, *, n_served: int = 0, n_pauses: int = 0) -> Sequence:
    """One that had all its service in its slot."""
    made = Sequence(JobKey(job), [TokenId(1)] * n_prompt, max_tokens, SamplingParams(seed=0), ChannelText(()))
    made.n_served = made.n_turn = n_served
    made.n_pauses = n_pauses
    return made


def in_order(*sequences: Sequence) -> list[int]:
    return [one.job for one in sorted(sequences, key=FAIR.rank)]


def test_who_has_had_least_comes_first_and_of_equals_the_oldest() -> None:
    assert in_order(sequence(0, n_served=900), sequence(1), sequence(2, n_served=90), sequence(3)) == [1, 3, 2, 0]


def test_who_was_passed_comes_first_whatever_it_has_had() -> None:
    passed = sequence(3, 400, 400, n_served=700)
    passed.n_passed = MAX_PASSED
    assert in_order(sequence(0), sequence(1), passed) == [3, 0, 1]


def test_the_quantum_is_what_the_waiting_job_may_need() -> None:
    assert FAIR.may_be_preempted(sequence(0, n_served=30), sequence(1, 10, 20))
    assert not FAIR.may_be_preempted(sequence(0, n_served=29), sequence(1, 10, 20))


def test_a_job_with_many_cells_has_a_longer_turn() -> None:
    running = sequence(0, n_served=MUCH)
    running.n_computed = 100 * CELLS_PER_ROW
    for running.n_turn, may_be_preempted in ((99, False), (100, True)):
        assert FAIR.may_be_preempted(running, sequence(1)) is may_be_preempted


def test_a_job_that_was_paused_often_enough_stays_and_has_room_to_its_end() -> None:
    stays, other = sequence(0, 10, 500, n_served=MUCH, n_pauses=MAX_PAUSES), sequence(1, n_served=1)
    assert not FAIR.may_be_preempted(stays, sequence(2))
    assert FAIR.victim([stays, other]) is other
    assert FAIR.cells_to_reserve(stays) == stays.n_most


def test_each_pause_doubles_the_margin_as_far_as_it_may_be_used() -> None:
    margins = [FAIR.cells_to_reserve(sequence(0, 10, 60, n_pauses=n_pauses)) - 10 for n_pauses in range(4)]
    assert margins == [DECODE_MARGIN, 2 * DECODE_MARGIN, 60, 60]


def test_first_come_knows_nothing_of_service() -> None:
    old, young = sequence(0, n_served=MUCH), sequence(1)
    policy = FirstCome()
    assert policy.rank(old) < policy.rank(young)
    assert policy.victim([old, young]) is young
    assert not policy.may_be_preempted(old, young)
    assert policy.cells_to_reserve(old) == 10 + DECODE_MARGIN
    assert FirstCome(is_reserving=True).cells_to_reserve(old) == old.n_most
