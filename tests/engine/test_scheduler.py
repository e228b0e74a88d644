"""The scheduler's decisions, step by step, without a runner: the tests compute what it asks for themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.backend import Step
from worker.engine.contract import JobKey, Sampling, SlotId, TokenId
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence, State
from worker.engine.text import TextStream

LAW = settings(derandomize=True, deadline=None, max_examples=300)


def waiting(job: int, n_prompt: int = 4, max_tokens: int = 4) -> Sequence:
    prompt = [TokenId(token) for token in range(n_prompt)]
    return Sequence(JobKey(job), prompt, max_tokens, Sampling(seed=0), TextStream(()))


def scheduler_of(*sequences: Sequence, n_slots: int = 4, n_cells: int = 1000, chunk: int = 8) -> Scheduler:
    scheduler = Scheduler(n_slots=n_slots, n_cells=n_cells, chunk=chunk)
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def compute(scheduler: Scheduler, step: Step) -> None:
    """What the loop does with a step that went well: count, move on, append what was drawn, end what is complete."""
    for piece in step.slices:
        sequence = scheduler.running[piece.slot]
        sequence.n_computed += len(piece.tokens)
        if piece.sampling is None:
            continue
        if sequence.state is State.PREFILL:
            sequence.move(State.DECODE)
        sequence.generated.append(TokenId(0))
        if sequence.is_out_of_tokens:
            scheduler.remove(sequence)


def next_computed(scheduler: Scheduler) -> Step:
    scheduler.admit()
    step = scheduler.next_step()
    assert step is not None
    compute(scheduler, step)
    return step


def jobs(sequences: list[Sequence]) -> list[int]:
    return [sequence.job for sequence in sequences]


def slots(step: Step) -> list[SlotId]:
    return [piece.slot for piece in step.slices]


# ── admission ────────────────────────────────────────────────────────────────────────────────────


def test_admission_takes_the_queues_head_and_the_lowest_free_slot() -> None:
    scheduler = scheduler_of(*(waiting(job) for job in range(3)), n_slots=2)
    assert jobs(scheduler.admit()) == [0, 1]
    assert {slot: sequence.job for slot, sequence in scheduler.running.items()} == {0: 0, 1: 1}
    scheduler.remove(scheduler.running[SlotId(0)])
    assert jobs(scheduler.admit()) == [2]
    assert scheduler.running[SlotId(0)].job == 2


def test_nobody_passes_a_head_that_waits_for_cells() -> None:
    running, large, small = waiting(0, 50, 10), waiting(1, 60, 10), waiting(2, 1, 1)
    scheduler = scheduler_of(running, large, small, n_cells=100)
    assert jobs(scheduler.admit()) == [0]
    assert scheduler.admit() == []
    scheduler.remove(running)
    assert jobs(scheduler.admit()) == [1, 2]


def test_a_head_that_is_cancelled_while_it_waits_lets_the_next_through() -> None:
    large, small = waiting(1, 60, 10), waiting(2, 1, 1)
    scheduler = scheduler_of(waiting(0, 50, 10), large, small, n_cells=100)
    scheduler.admit()
    scheduler.remove(large)
    assert jobs(scheduler.admit()) == [2]


def test_a_reservation_that_fills_the_last_cell_is_admitted() -> None:
    scheduler = scheduler_of(waiting(0, 60, 40), waiting(1, 1, 1), n_cells=100)
    assert jobs(scheduler.admit()) == [0]
    assert scheduler.n_free_cells == 0


def test_what_could_never_fit_is_refused_at_the_door() -> None:
    with pytest.raises(AssertionError):
        scheduler_of(waiting(0, 60, 41), n_cells=100)


def test_a_job_key_in_flight_is_refused() -> None:
    with pytest.raises(AssertionError):
        scheduler_of(waiting(0), waiting(0))


def test_a_removed_sequence_is_done_and_unknown() -> None:
    first, second = waiting(0), waiting(1)
    scheduler = scheduler_of(first, second, n_slots=1)
    scheduler.admit()
    for sequence in (first, second):
        assert scheduler.find(sequence.job) is sequence
        scheduler.remove(sequence)
        assert sequence.state is State.DONE
        assert scheduler.find(sequence.job) is None
    assert scheduler.is_idle


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


def test_there_is_no_step_while_nothing_holds_a_slot() -> None:
    assert scheduler_of().next_step() is None
    assert scheduler_of(waiting(0)).next_step() is None


def test_short_prompts_share_a_prefill_step_as_far_as_the_chunk_goes() -> None:
    scheduler = scheduler_of(waiting(0, 3), waiting(1, 5), waiting(2, 1), chunk=8)
    assert slots(next_computed(scheduler)) == [0, 1]


def test_a_prompt_that_does_not_fit_the_rest_of_the_chunk_is_not_passed() -> None:
    scheduler = scheduler_of(waiting(0, 3), waiting(1, 6), waiting(2, 1), chunk=8)
    assert slots(next_computed(scheduler)) == [0]


def test_a_long_prompt_costs_the_others_one_chunk_per_token() -> None:
    scheduler = scheduler_of(waiting(0, 4, max_tokens=20), chunk=8)
    next_computed(scheduler)
    scheduler.add(waiting(1, 32, max_tokens=20))
    steps = [next_computed(scheduler) for _ in range(8)]
    assert [(step.kind, slots(step)) for step in steps] == [("decode", [0]), ("prefill", [1])] * 4


def test_decoding_never_holds_a_prompt_up_for_more_than_one_step() -> None:
    scheduler = scheduler_of(waiting(0, 4, max_tokens=50), waiting(1, 4, max_tokens=50), chunk=8)
    steps = [next_computed(scheduler) for _ in range(3)]
    scheduler.add(waiting(2, 4))
    steps += [next_computed(scheduler) for _ in range(2)]
    assert [step.kind for step in steps] == ["prefill", "decode", "decode", "prefill", "decode"]


def test_a_prompt_is_computed_whole_before_a_younger_one_begins() -> None:
    scheduler = scheduler_of(waiting(0, 16), waiting(1, 16), chunk=8)
    steps = [next_computed(scheduler) for _ in range(5)]
    assert [slots(step) for step in steps if step.kind == "prefill"] == [[0], [0], [1]]


def test_a_decode_step_has_one_token_of_every_decoding_slot_in_order_of_admission() -> None:
    scheduler = scheduler_of(*(waiting(job, 2, max_tokens=2 + job) for job in range(3)), n_slots=3)
    next_computed(scheduler)
    next_computed(scheduler)
    scheduler.add(waiting(3, 2))
    next_computed(scheduler)
    step = next_computed(scheduler)
    assert (step.kind, slots(step), step.n_tokens) == ("decode", [1, 2, 0], 3)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

PROMPT_LENGTHS = st.integers(1, 6) | st.integers(1, 90)
Lengths = tuple[int, int]
"""prompt, max_tokens"""


@LAW
@given(
    lengths=st.lists(st.tuples(PROMPT_LENGTHS, st.integers(1, 10)), max_size=12),
    n_slots=st.integers(1, 5),
    n_spare_cells=st.integers(0, 200),
    chunk=st.sampled_from((1, 4, 8, 64)),
    removals=st.dictionaries(st.integers(0, 40), st.integers(0, 11), max_size=4),
)
def test_slots_and_cells_are_conserved_and_all_work_is_done_in_turn(
    lengths: list[Lengths], n_slots: int, n_spare_cells: int, chunk: int, removals: dict[int, int]
) -> None:
    """`removals` says which job is cancelled before which step."""
    sequences = [waiting(job, *length) for job, length in enumerate(lengths)]
    scheduler = scheduler_of(*sequences, n_slots=n_slots, n_cells=100 + n_spare_cells, chunk=chunk)
    admitted: list[int] = []
    n_steps = 0
    while not scheduler.is_idle:
        cancelled = scheduler.find(JobKey(removals.get(n_steps, -1)))
        if cancelled is not None:
            scheduler.remove(cancelled)
        admitted += jobs(scheduler.admit())
        step = scheduler.next_step()
        if step is not None:
            check_step(scheduler, step, chunk)
            compute(scheduler, step)
        check_conserved(scheduler, n_slots)
        n_steps += 1
        assert n_steps <= sum(n_prompt + max_tokens for n_prompt, max_tokens in lengths) + 1
    assert admitted == sorted(admitted)
    assert scheduler.n_free_cells == scheduler.n_cells


def check_step(scheduler: Scheduler, step: Step, chunk: int) -> None:
    """Everything that decodes decodes; a prefill step is the oldest prompts, as many as may share it."""
    state = State.PREFILL if step.kind == "prefill" else State.DECODE
    able = [slot for slot, sequence in scheduler.running.items() if sequence.state is state]
    n_slices = len(step.slices)
    assert slots(step) == able[:n_slices]
    if step.kind == "decode":
        assert n_slices == len(able)
        return
    assert 0 < step.n_tokens <= chunk
    if n_slices < len(able):
        left_out = scheduler.running[able[n_slices]].prefill_slice(chunk)
        assert step.n_tokens + len(left_out.tokens) > chunk


def check_conserved(scheduler: Scheduler, n_slots: int) -> None:
    assert sorted([*scheduler.free_slots, *scheduler.running]) == list(range(n_slots))
    reserved = sum(sequence.n_reserved for sequence in scheduler.running.values())
    assert scheduler.n_free_cells + reserved == scheduler.n_cells
    assert scheduler.n_cells_used <= reserved
