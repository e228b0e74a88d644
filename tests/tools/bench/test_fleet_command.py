"""`bench fleet`: the verdict over each side. The fleets themselves are in tests/fleet."""

from collections.abc import Sequence
from dataclasses import replace

from parity.provenance import this_machine
from tools.bench.conversations import Shape, Turn
from tools.bench.fleet_command import Played, Report

ANSWERED = Turn(conversation=0, turn=0, first_s=0.2, waited_s=0.2, n_prompt=100, n_cached=80, failures=[])
LOST = Turn(conversation=0, turn=1, first_s=0, waited_s=0, n_prompt=0, n_cached=0, failures=["503"], is_answered=False)


def played(side: str, *turns: Turn, n_jobs: int | None = None, lost: bool = False) -> Played:
    return Played.of(side, turns, len(turns) if n_jobs is None else n_jobs, 1.0, lost_a_worker=lost)


def news(*of: Played) -> Sequence[str]:
    return Report(
        created="",
        machine=this_machine(1),
        model="",
        worker_flags="",
        parallel=8,
        shape=Shape(),
        seed=1,
        played=of,
    ).bad_news


BASE = played("round_robin", replace(ANSWERED, n_cached=40, first_s=0.4))


def test_half_the_first_token_and_twice_the_hits_of_round_robin_are_enough() -> None:
    assert news(BASE, played("kv_aware", ANSWERED), played("ray", ANSWERED)) == []


def test_less_is_reported_for_the_sides_that_are_judged() -> None:
    slow, forgetful = replace(ANSWERED, first_s=0.21), replace(ANSWERED, n_cached=79)
    assert news(BASE, played("kv_aware", slow)) == ["kv_aware: first token × 0.53, wanted × 0.5"]
    assert news(BASE, played("ray", forgetful)) == ["ray: hits × 1.98, wanted × 2"]
    assert news(BASE, played("cache_aware", slow)) == []


def test_every_turn_is_answered_once_at_the_first_try() -> None:
    again = replace(ANSWERED, failures=["cut"], n_hung=1)
    assert news(played("ray", ANSWERED, LOST, n_jobs=1)) == ["ray: 1 not answered"]
    assert news(played("ray", again)) == ["ray: 1 hung", "ray: 1 asked again"]
    assert news(played("ray", ANSWERED, n_jobs=2)) == ["ray: 1 jobs more or less than answers"]


def test_next_to_a_crash_a_turn_may_be_asked_again_but_not_be_answered_twice() -> None:
    again = replace(ANSWERED, failures=["cut"])
    assert news(played("ray", again, lost=True)) == []
    assert news(played("ray", again, n_jobs=0, lost=True)) == []
    assert news(played("ray", again, n_jobs=2, lost=True)) == ["ray, a worker killed: 1 answered twice"]
