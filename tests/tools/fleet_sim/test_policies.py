"""Each policy chooses from what a router sees."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tools.fleet_sim.policies import (
    BLOCK,
    POLICIES,
    KvEvents,
    LeastLoaded,
    PrefixAffinity,
    RoundRobin,
    SessionHash,
    policy_of,
)
from tools.fleet_sim.workloads import Ask
from worker.wire.jobs import TokenId

A, B = range(1_000, 2_000), range(5_000, 6_000)
IDLE = [0, 0, 0, 0]


def ask(prompt: Sequence[int], session: int = 0) -> Ask:
    return Ask(session, tuple(TokenId(token) for token in prompt), TokenId(7), 8)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_chooses_one_of_the_workers(name: str) -> None:
    policy = policy_of(name, n_workers=3, seed=1, known_tokens=1_000, held=lambda _worker, _prompt: 0)
    assert {policy.choose(ask(A, session), [1, 0, 2]) for session in range(40)} <= {0, 1, 2}


def test_round_robin_goes_round() -> None:
    policy = RoundRobin()
    assert [policy.choose(ask(A), IDLE) for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def test_the_least_loaded_is_chosen_and_of_equals_each_at_some_time() -> None:
    policy = LeastLoaded(seed=1)
    assert {policy.choose(ask(A), [2, 1, 3, 1]) for _ in range(50)} == {1, 3}


def test_of_two_choices_the_busier_is_never_taken() -> None:
    policy = LeastLoaded(seed=1, n_looked_at=2)
    chosen = Counter(policy.choose(ask(A), [0, 1, 2, 9]) for _ in range(300))
    assert chosen[3] == 0
    assert chosen[0] > chosen[1] > chosen[2] > 0


def test_a_session_stays_where_it_is_and_few_move_when_a_worker_comes() -> None:
    before, after = SessionHash(10), SessionHash(11)
    sessions = [ask(A, number) for number in range(2_000)]
    placed = [before.choose(one, [0] * 10) for one in sessions]
    assert placed == [before.choose(one, [5] * 10) for one in sessions]
    moved = [
        new for old, new in zip(placed, (after.choose(one, [0] * 11) for one in sessions), strict=True) if old != new
    ]
    assert set(moved) == {10}, "only the newcomer takes some"
    assert len(moved) < 2_000 * 2 / 11
    assert max(Counter(placed).values()) < 1.5 * 200


def test_a_prefix_goes_where_it_went_before_and_the_longest_wins() -> None:
    policy = PrefixAffinity(4, seed=1, known_tokens=10_000)
    first = policy.choose(ask(A[:64]), IDLE)
    others = [int(worker != first) for worker in range(4)]
    elsewhere = policy.choose(ask([*A[:64], *B[:64]]), [3, 3, 3, 3] if first else [3, 0, 3, 3])
    assert policy.choose(ask([*A[:64], *A[500:600]]), IDLE) in {first, elsewhere}
    assert policy.choose(ask([*A[:64], *B[:100]]), IDLE) == elsewhere
    assert policy.choose(ask(B[200:300]), others) == first, "no worker has it: the least loaded"


def test_a_worker_over_the_bound_is_passed_over() -> None:
    policy = PrefixAffinity(4, seed=1, known_tokens=10_000)
    owner = policy.choose(ask(A[:64]), IDLE)
    busy = [9 if worker == owner else 1 for worker in range(4)]
    assert policy.choose(ask(A[:64]), busy) != owner


def test_what_went_unused_longest_is_forgotten() -> None:
    policy = PrefixAffinity(2, seed=1, known_tokens=4 * BLOCK)
    owner = policy.choose(ask(A[:64]), [0, 0])
    for start in (0, 64, 128):
        assert policy.choose(ask(B[start : start + 64]), [int(owner == 1), int(owner == 0)]) == owner
    assert {policy.choose(ask(A[:64]), [int(owner == 0), int(owner == 1)]) for _ in range(3)} == {1 - owner}


def test_kv_events_show_what_a_worker_has_lost() -> None:
    held = {0: 0, 1: 0}
    policy = KvEvents(2, seed=1, held=lambda worker, _prompt: held[worker])
    owner = policy.choose(ask(A[:64]), [0, 0])
    other = policy.choose(ask(A[:64]), [int(owner == 0), int(owner == 1)])
    assert other == 1 - owner, "no worker has kept anything: the least loaded"
    held[owner] = 64
    assert policy.choose(ask(A[:64]), [0, 0]) == owner
    held[owner], held[other] = 16, 48
    assert policy.choose(ask(A[:64]), [0, 0]) == other
