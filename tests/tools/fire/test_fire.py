"""2,000 requests at once at small models: each gets the answer that it has alone, and planted faults are found."""

from contextlib import closing
from pathlib import Path

import pytest

from tools.fire.alone import Store
from tools.fire.campaign import Campaign, Progress
from tools.fire.trace import draw, read, saved

pytestmark = pytest.mark.process

N_EACH = 500
SEEDS = (21, 23, 36, 37)
"""Attention in 8 and in 16 slots, a recurrent state, and windows in 16 slots, all with a prefix cache."""


def quiet(_: str) -> None:
    pass


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_2000_requests_get_the_answers_that_they_have_alone(seed: int, tmp_path: Path) -> None:
    """500 with each seed, at models with attention, with windows and with recurrent state. If one fails, its trace can
    be replayed (docs/determinism.md).
    """
    trace = draw(seed, n_requests=N_EACH)
    with closing(Campaign(tmp_path)) as campaign:
        run, found = campaign.judged(trace)
    assert not found, "\n".join([str(saved(trace, tmp_path / "trace.json")), *found])
    assert len(run.outcomes) == N_EACH
    assert {outcome.status for outcome in run.outcomes} <= {0, 200, 400, 500}
    assert sum(outcome.status == 200 for outcome in run.outcomes) > 0.8 * N_EACH
    assert run.counts["prompt tokens reused"]


@pytest.mark.timeout(900)
def test_an_answer_that_differs_from_the_stored_one_is_found_again_and_again(tmp_path: Path) -> None:
    with closing(Campaign(tmp_path, ("attention",))) as campaign:
        trace = draw(5, n_requests=6, models=("attention",))
        _, found = campaign.judged(trace)
        assert not found
        (victim,) = (trace.asks[act.ask] for act in trace.lives[1].acts if act.fate is None)
        with closing(Store(tmp_path / "alone.sqlite")) as store:
            answer = store.get("attention", victim.digest)
            assert answer is not None
            answer.status = 418
            store.put("attention", {victim.digest: answer})
        _, found = campaign.judged(trace)
        assert found
        assert all("status: 200 != 418" in line for line in found)
        assert campaign.again(read(saved(trace, tmp_path / "trace.json")), 1) == found


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    progress = Progress()
    for n_requests in (4, 10):
        with closing(Campaign(tmp_path, ("attention",))) as campaign:
            progress = campaign.run(n_requests, quiet, n_each=4)
    assert (progress.n_requests, progress.next_seed) == (10, 3)
