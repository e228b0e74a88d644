"""Each decision of which job comes first and which is preempted. test_fair_shares.py has what follows from them."""

from worker.engine.channels import ChannelText
from worker.engine.scheduler import CELLS_PER_ROW, MAX_PASSED, MAX_PAUSES, QUANTUM, FairShares, FirstCome
from worker.engine.sequence import Sequence
from worker.limits import DECODE_MARGIN
from worker.wire.jobs import JobKey, SamplingParams, TokenId

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
