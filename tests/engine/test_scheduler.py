"""The scheduler's decisions, step by step, without a runner: the tests compute what it asks for themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.channels import ChannelText
from worker.engine.config import EngineConfig
from worker.engine.scheduler import PASSES, Scheduler
from worker.engine.sequence import Sequence, State
from worker.engine.step import Step
from worker.wire.jobs import JobKey, SamplingParams, SlotId, StepKind, TokenId

LAW = settings(max_examples=300)
TARGET_S = 0.15
STEP_S: dict[StepKind, float] = {"prefill": TARGET_S, "decode": TARGET_S / 9}
"""Steps that take so long make later prefill steps neither longer nor shorter."""


def waiting(job: int, n_prompt: int = 4, max_tokens: int = 4) -> Sequence:
    prompt = [TokenId(token) for token in range(n_prompt)]
    return Sequence(JobKey(job), prompt, max_tokens, SamplingParams(seed=0), ChannelText(()))


def scheduler_of(
    *sequences: Sequence,
    n_slots: int = 4,
    n_cells: int = 1000,
    chunk: int = 8,
    widest_step: int = 0,
    is_fixed: bool = False,
) -> Scheduler:
    config = EngineConfig(
        n_slots=n_slots,
        n_cells=n_cells,
        context_length=n_cells,
        chunk=chunk,
        widest_step=widest_step,
        itl_target_s=TARGET_S,
        is_deterministic=is_fixed,
    )
    scheduler = Scheduler(config, can_abort=False, can_keep=False)
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def n_free(scheduler: Scheduler) -> int:
    return scheduler.n_cells - sum(sequence.n_computed for sequence in scheduler.running.values())


def admit(scheduler: Scheduler, n_shared: int = 0) -> list[Sequence]:
    """Give out slots. A job with nothing to share is at once in prefill."""
    scheduler.admit(n_free(scheduler), lambda _: n_shared)
    admitted = [sequence for sequence in scheduler.running.values() if sequence.state is State.FOLLOW]
    for sequence in admitted:
        sequence.move(State.PREFILL)
    return admitted


def compute(scheduler: Scheduler, step: Step) -> None:
    """Act as the loop does after a step: count it, append the drawn tokens, end the complete jobs."""
    scheduler.complete(step, STEP_S[step.kind])
    for slice_ in step.slices:
        sequence = scheduler.running[slice_.slot]
        if slice_.sampling is not None:
            sequence.append(TokenId(0))
        if sequence.is_out_of_tokens:
            scheduler.remove(sequence)


def pause_for(scheduler: Scheduler, step: Step) -> None:
    """Make room for a step as the loop does."""
    victim = scheduler.victim()
    assert victim is not None, "what is alone fits"
    scheduler.pause(victim)


def next_computed(scheduler: Scheduler) -> Step:
    admit(scheduler)
    while (step := scheduler.next_step()) is not None and step.n_tokens > n_free(scheduler):
        pause_for(scheduler, step)
    assert step is not None
    scheduler.begin(step)
    compute(scheduler, step)
    return step


def jobs(sequences: list[Sequence]) -> list[int]:
    return [sequence.job for sequence in sequences]


def slots(step: Step) -> list[SlotId]:
    return [slice_.slot for slice_ in step.slices]


def test_admission_takes_the_queues_head_and_the_lowest_free_slot() -> None:
    scheduler = scheduler_of(*(waiting(job) for job in range(3)), n_slots=2)
    assert jobs(admit(scheduler)) == [0, 1]
    assert {slot: sequence.job for slot, sequence in scheduler.running.items()} == {0: 0, 1: 1}
    scheduler.remove(scheduler.running[SlotId(0)])
    assert jobs(admit(scheduler)) == [2]
    assert scheduler.running[SlotId(0)].job == 2


def test_no_job_passes_a_head_that_waits_for_cells() -> None:
    running, large, small = waiting(0, 50, 10), waiting(1, 60, 10), waiting(2, 1, 1)
    scheduler = scheduler_of(running, large, small, n_cells=100)
    assert jobs(admit(scheduler)) == [0]
    assert admit(scheduler) == []
    scheduler.remove(running)
    assert jobs(admit(scheduler)) == [1, 2]


def test_tokens_that_others_have_computed_need_no_room() -> None:
    scheduler = scheduler_of(waiting(0, 50, 10), waiting(1, 60, 10), n_cells=100, chunk=64)
    next_computed(scheduler)
    assert admit(scheduler, n_shared=20) == []
    assert jobs(admit(scheduler, n_shared=48)) == [1]


def test_what_could_never_fit_is_refused_at_the_door() -> None:
    with pytest.raises(AssertionError):
        scheduler_of(waiting(0, 60, 41), n_cells=100)


def test_the_newest_is_paused_and_waits_before_all_that_are_younger() -> None:
    scheduler = scheduler_of(*(waiting(job) for job in range(5)), n_slots=3)
    admit(scheduler)
    for expected in (2, 1):
        newest = scheduler.victim()
        assert newest is not None
        assert newest.job == expected
        scheduler.pause(newest)
    assert scheduler.victim() is None, "the last one goes on"
    assert [sequence.job for sequence in scheduler.waiting] == [1, 2, 3, 4]
    assert jobs(admit(scheduler)) == [1, 2]


def test_a_step_is_wide_while_no_job_generates_and_a_chunk_when_one_does() -> None:
    scheduler = scheduler_of(waiting(0, 40, 50), chunk=8, widest_step=32)
    assert [next_computed(scheduler).n_tokens for _ in range(2)] == [32, 8]
    scheduler.add(waiting(1, 40))
    sizes = {(step.kind, step.n_tokens) for step in [next_computed(scheduler) for _ in range(6)]}
    assert sizes == {("decode", 1), ("prefill", 8)}


def test_a_short_prompt_passes_a_long_one() -> None:
    scheduler = scheduler_of(waiting(0, 80), chunk=8)
    next_computed(scheduler)
    scheduler.add(waiting(1, 8, max_tokens=1))
    assert slots(next_computed(scheduler)) == [1]


def test_short_prompts_without_end_leave_the_oldest_every_third_step() -> None:
    scheduler = scheduler_of(waiting(0, 80, 1), n_slots=3, chunk=8)
    first = [0]
    for job in range(1, 28):
        scheduler.add(waiting(job, 8, max_tokens=1))
        first.append(next_computed(scheduler).slices[0].slot)
    assert first[1:].count(0) == 9
    assert all(0 in first[i : i + PASSES + 1] for i in range(1, 25))


def test_a_step_is_filled_with_parts_of_other_prompts() -> None:
    scheduler = scheduler_of(waiting(0, 4, 9), *(waiting(job, 20) for job in (1, 2, 3)), chunk=32)
    admit(scheduler)
    step = next_computed(scheduler)
    assert [(slice_.slot, len(slice_.tokens)) for slice_ in step.slices] == [(0, 4), (1, 20), (2, 8)]


def test_fixed_steps_are_one_prompts_chunk_whatever_else_there_is_to_do() -> None:
    scheduler = scheduler_of(widest_step=64, is_fixed=True)
    for job, n_prompt in enumerate((20, 3, 3)):
        scheduler.add(waiting(job, n_prompt, max_tokens=1))
    steps = [next_computed(scheduler) for _ in range(5)]
    assert sorted(step.n_tokens for step in steps) == [3, 3, 4, 8, 8]
    assert all(len(step.slices) == 1 for step in steps)


PROMPT_LENGTHS = st.integers(1, 6) | st.integers(1, 90)
Lengths = tuple[int, int]
"""prompt, max_tokens"""


@LAW
@given(
    lengths=st.lists(st.tuples(PROMPT_LENGTHS, st.integers(1, 10)), max_size=12),
    n_slots=st.integers(1, 5),
    n_spare_cells=st.integers(0, 200),
    chunk=st.sampled_from((1, 4, 8, 64)),
    widest_step=st.sampled_from((0, 16, 128)),
    removals=st.dictionaries(st.integers(0, 40), st.integers(0, 11), max_size=4),
)
def test_slots_are_conserved_cells_are_never_overdrawn_and_all_work_is_done(
    *,
    lengths: list[Lengths],
    n_slots: int,
    n_spare_cells: int,
    chunk: int,
    widest_step: int,
    removals: dict[int, int],
) -> None:
    """`removals` says which job is cancelled before which step."""
    sequences = [waiting(job, *length) for job, length in enumerate(lengths)]
    n_cells = 100 + n_spare_cells
    scheduler = scheduler_of(*sequences, n_slots=n_slots, n_cells=n_cells, chunk=chunk, widest_step=widest_step)
    n_steps = n_paused = 0
    while not scheduler.is_idle:
        cancelled = scheduler.find(JobKey(removals.get(n_steps, -1)))
        if cancelled is not None:
            scheduler.remove(cancelled)
        admit(scheduler)
        step = scheduler.next_step()
        if step is not None and step.n_tokens > n_free(scheduler):
            pause_for(scheduler, step)
            n_paused += 1
        elif step is not None:
            check_step(scheduler, step, max(chunk, widest_step))
            scheduler.begin(step)
            compute(scheduler, step)
        assert sorted([*scheduler.free_slots, *scheduler.running]) == list(range(n_slots))
        assert n_free(scheduler) >= 0
        n_steps += 1
        n_tokens = sum(n_prompt + max_tokens for n_prompt, max_tokens in lengths)
        assert n_steps <= (1 + n_paused) * (n_tokens + 1)


def check_step(scheduler: Scheduler, step: Step, widest: int) -> None:
    """Everything that decodes decodes; a prefill step has its size, and is full as far as whole slices go."""
    state = State.PREFILL if step.kind == "prefill" else State.DECODE
    able = [slot for slot, sequence in scheduler.running.items() if sequence.state is state]
    if step.kind == "decode":
        assert slots(step) == able
    else:
        assert set(slots(step)) <= set(able)
        assert 0 < step.n_tokens <= widest
