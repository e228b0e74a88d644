"""Log-probabilities of prompts: which job computes them, which finds them, and when they are reported.

That they are right, complete and in order is checked by the rig (rig.py) for every job.
"""

import pytest

from tests.engine.fake_runner import CELL_BYTES, Request
from tests.engine.rig import Rig
from worker.engine.prefill_budget import GRAIN
from worker.engine.prefix_tree import SCORE_BYTES
from worker.engine.reports import MAX_REPORTED
from worker.engine.step import MAX_TOPS, Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import MAX_LOGPROBS, JobKey, StepDone

PLENTY = 10_000 * (CELL_BYTES + SCORE_BYTES)


def prompt(start: int, n_tokens: int) -> tuple[int, ...]:
    return tuple(10 + (start * 7 + i * i) % 50 for i in range(n_tokens))


def scored(tokens: tuple[int, ...], n_top: int | None = 1, max_tokens: int = 0) -> Request:
    return Request(tokens, max_tokens, prompt_logprobs=n_top)


def choices(n_context: int, n: int) -> list[Request]:
    """Continuations of one context, of four tokens each, whose first tokens differ."""
    return [scored((*prompt(0, n_context), *(i, i, 1, 2))) for i in range(n)]


def rig_of(**changes: int | bool) -> Rig:
    sizes: dict[str, int | bool] = {"context_length": 300, "n_cells": 2400, "prefix_cache_bytes": PLENTY}
    return Rig(**{**sizes, **changes})  # type: ignore[arg-type]  # mixed on purpose


def watched_rows(rig: Rig) -> list[int]:
    """The number of rows of logits of each step."""
    rows: list[int] = []
    check = rig.runner.before_run

    def watch(step: Step) -> None:
        check(step)
        rows.append(sum(slice_.n_rows for slice_ in step.slices))

    rig.runner.before_run = watch
    return rows


def run(rig: Rig, *requests: Request) -> int:
    """Run these all at once; return the number of tokens that were computed."""
    n_before = rig.runner.n_computed
    for request in requests:
        rig.submit(request)
    rig.run_until_idle()
    rig.check_stories()
    return rig.runner.n_computed - n_before


def test_there_are_as_many_tops_as_a_request_may_want() -> None:
    assert MAX_TOPS == MAX_LOGPROBS


@pytest.mark.parametrize("n_slots", [1, 3, 8])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_many_choices_over_one_context_cost_the_context_once(n_slots: int, is_at_once: bool) -> None:
    """Each computes its own four tokens, and the last of the context again, which says what its first one is worth."""
    rig, wanted = rig_of(n_slots=n_slots), choices(200, 50)
    n_computed = run(rig, *wanted) if is_at_once else sum(run(rig, one) for one in wanted)
    assert n_computed == 200 + 4 + 49 * 5


def test_with_fixed_chunks_a_choice_computes_its_context_from_the_last_edge_on() -> None:
    rig = rig_of(is_deterministic=True)
    assert run(rig, *choices(200, 50)) == 204 + 49 * 12
    assert rig.n_cached[JobKey(1)] == 192


def test_a_later_job_finds_the_choices_however_many_tops_it_wants() -> None:
    rig = rig_of()
    run(rig, *choices(200, 3))
    tokens = (*prompt(0, 200), 0, 0, 1, 2)
    assert run(rig, scored(tokens, MAX_TOPS)) == 1
    assert run(rig, scored((*tokens, 7, 8), 0, max_tokens=3)) == 3 + 2


def test_cells_without_log_probabilities_count_as_none_and_get_them() -> None:
    tokens = prompt(0, 100)
    rig = rig_of()
    assert run(rig, Request(tokens, max_tokens=1)) == 100
    assert run(rig, scored(tokens)) == 100
    assert run(rig, Request(prompt(1, 50), max_tokens=1)) == 50, "and the first ones' cells are copied out"
    assert run(rig, scored(tokens)) == 1


def test_they_count_as_far_as_they_are_known() -> None:
    tokens = prompt(0, 120)
    rig = rig_of()
    run(rig, scored(tokens[:70]))
    run(rig, Request(tokens, max_tokens=1))
    assert run(rig, scored(tokens)) == 120 - 69


def test_a_job_that_wants_none_hands_them_on() -> None:
    """The second job's cells replace the first one's in the retained slot."""
    tokens = prompt(0, 100)
    rig = rig_of()
    run(rig, scored(tokens))
    assert run(rig, Request((*tokens, 5), max_tokens=1)) == 1
    assert run(rig, scored(tokens)) == 1


def test_a_job_follows_one_that_scores_the_same_prompt_and_no_other() -> None:
    tokens = prompt(0, 100)
    assert run(rig_of(), scored(tokens), scored(tokens, 3), Request(tokens, max_tokens=1)) == 100 + 1 + 1
    assert run(rig_of(), Request(tokens, max_tokens=1), scored(tokens)) == 200


def test_a_step_scores_no_more_rows_than_there_are() -> None:
    """There are rows for a chunk if chunks are fixed, and otherwise as many as drafts have elsewhere. All of them are
    used by prompts whose last part fills up what whole grains leave.
    """
    for is_deterministic, n_most in ((False, MAX_DRAFTS), (True, 64)):
        rig = rig_of(chunk=64, is_deterministic=is_deterministic)
        rows = watched_rows(rig)
        run(rig, *(scored(prompt(i, 96 + n_most % GRAIN)) for i in range(4)))
        assert max(rows) == n_most


def test_what_is_found_is_reported_a_part_with_each_step_while_others_go_on() -> None:
    rig = rig_of(context_length=2000, n_cells=8000)
    tokens = prompt(0, 1500)
    run(rig, scored(tokens))
    talker = rig.submit(Request((1, 2, 3), max_tokens=40))
    rig.step()
    n_frames, n_texts = len(rig.frames), len(rig.stories[talker].texts)
    rig.submit(scored(tokens, MAX_TOPS, max_tokens=2))
    rig.run_until_idle()
    rig.check_stories()
    sizes = [
        sum(len(part.tokens) for part in frame.prompt_logprobs) * (1 + MAX_TOPS)
        for frame in rig.frames[n_frames:]
        if isinstance(frame, StepDone)
    ]
    n_parts = sum(size > 0 for size in sizes)
    assert max(sizes) <= MAX_REPORTED
    assert n_parts >= 1499 * (1 + MAX_TOPS) // MAX_REPORTED
    assert len(rig.stories[talker].texts) > n_texts + n_parts


def test_they_count_against_the_prefix_cache() -> None:
    plain, with_scores = rig_of(), rig_of()
    for rig, n_top in ((plain, None), (with_scores, 1)):
        run(rig, scored(prompt(0, 100), n_top), scored(prompt(1, 100), n_top))
    n_more = with_scores.engine.prefix_cache.index.n_bytes - plain.engine.prefix_cache.index.n_bytes
    assert n_more > 100 * SCORE_BYTES
