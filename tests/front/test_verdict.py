"""What a death means for each job; the whole road there is tests/front/test_client.py's."""

import pytest

from tests.front.rehearsal import Stage, rehearse
from worker.front.verdict import DEATHS_WINDOW_S, MAX_DEATHS, Deaths, judge


def test_every_job_is_sorted_once_in_order_of_arrival() -> None:
    async def play(stage: Stage) -> None:
        sent, ran_before, failing, also_failing, untried, queued = (stage.jobs[stage.submit()] for _ in range(6))
        sent.delta("text", None, 0.0)
        ran_before.n_deaths = 1
        present = {job.key for job in (sent, ran_before, failing, also_failing)}
        suspects = {failing.key, also_failing.key, untried.key}
        verdict = judge(stage.jobs.values(), present=present, suspects=suspects)
        assert verdict.interrupted == [sent]
        assert verdict.culprits == [ran_before]
        assert verdict.suspects == [failing, also_failing, untried]
        assert verdict.bystanders == [queued]
        assert [job.n_deaths for job in stage.jobs.values()] == [1, 2, 1, 1, 0, 0]

    rehearse(play)


@pytest.mark.parametrize(("last_s", "too_many"), [(DEATHS_WINDOW_S, True), (DEATHS_WINDOW_S + 1, False)])
def test_deaths_are_too_many_when_the_last_five_lie_within_ten_minutes(last_s: float, too_many: bool) -> None:
    deaths = Deaths()
    for _ in range(MAX_DEATHS - 1):
        deaths.add(0.0)
        assert not deaths.are_too_many
    deaths.add(last_s)
    assert deaths.are_too_many is too_many


def test_a_finished_job_clears_all_deaths_before_it() -> None:
    deaths = Deaths()
    for _ in range(MAX_DEATHS - 1):
        deaths.add(0.0)
    deaths.clear()
    for _ in range(MAX_DEATHS - 1):
        deaths.add(0.0)
    assert not deaths.are_too_many
