"""The engine's laws on the fake backend: whatever arrives, is cancelled or fails, in whatever order.

Each step and frame is checked by the rig (rig.py) as it happens; what a test itself says comes on top.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.fake_runner import N_VOCAB, Request, ToyModel
from tests.engine.rig import Rig
from worker.engine.contract import Failed, Finished, JobKey, StepBegun, StepDone

LAW = settings(derandomize=True, deadline=None, max_examples=400, stateful_step_count=40)

ENDS, UNDRAWABLE, POISON = 1, 2, 3
TROUBLED = ToyModel(ends=frozenset({ENDS}), undrawable=frozenset({UNDRAWABLE}), poison=frozenset({POISON}))
POISONOUS = ToyModel(poison=frozenset({POISON}))

CHUNKS = (1, 2, 4, 8)
STOPS = ("a", "bb", "cab", "dda", "aab")

HARMLESS = st.integers(POISON + 1, N_VOCAB - 1)
PROMPTS = st.lists(HARMLESS, min_size=1, max_size=3 * max(CHUNKS)).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    prompt = draw(PROMPTS)
    if draw(st.integers(0, 9)) == 0:
        prompt = (*prompt, POISON)
    stop = draw(st.lists(st.sampled_from(STOPS), max_size=2, unique=True))
    return Request(prompt, draw(st.integers(1, 12)), tuple(stop), seed=draw(st.integers(0, 3)))


class Anything(RuleBasedStateMachine):
    """Random arrivals, cancels at every stage and failures, on few slots and cells."""

    rig: Rig

    @initialize(n_slots=st.integers(1, 4), n_spare_cells=st.integers(0, 60), chunk=st.sampled_from(CHUNKS))
    def load(self, n_slots: int, n_spare_cells: int, chunk: int) -> None:
        self.rig = Rig(TROUBLED, n_slots=n_slots, chunk=chunk, context_length=30, n_cells=30 + n_spare_cells)

    @rule(request=requests())
    def arrive(self, request: Request) -> None:
        self.rig.submit(request)

    @precondition(lambda self: self.rig.stories)
    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        """Waiting, in prefill, decoding or ended long ago."""
        self.rig.cancel(JobKey(pick % len(self.rig.stories)))

    @rule(n_steps=st.integers(1, 8))
    def go_on(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self.rig.step()

    @rule(n_kept=st.integers(0, 10))
    def abort_the_next_step(self, n_kept: int) -> None:
        self.rig.next_misfortune = "abort"
        self.rig.runner.n_kept_at_abort = n_kept

    @rule()
    def refuse_the_next_step_its_cells(self) -> None:
        self.rig.next_misfortune = "no room"

    @invariant()
    def nothing_is_lost(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        """Also where Hypothesis has stopped early: what was accepted must come to its end."""
        if hasattr(self, "rig"):
            self.rig.run_until_idle()
            self.rig.check_stories()


def test_whatever_happens_every_job_ends_once_with_the_output_it_has_alone() -> None:
    run_state_machine_as_test(Anything, settings=LAW)


# ── many jobs ────────────────────────────────────────────────────────────────────────────────────


def request(start: int, n_prompt: int = 4, max_tokens: int = 32, stop: tuple[str, ...] = ()) -> Request:
    """A harmless prompt that no other `start` shares."""
    prompt = tuple(10 + (start * 7 + i * i) % 50 for i in range(n_prompt))
    return Request(prompt, max_tokens, stop, seed=start)


def rig_with(*wanted: Request, model: ToyModel | None = None, n_slots: int = 8, chunk: int = 8) -> Rig:
    rig = Rig(model, n_slots=n_slots, chunk=chunk)
    for one in wanted:
        rig.submit(one)
    return rig


def test_eight_jobs_of_32_tokens_take_at_most_1_3_times_32_decode_steps() -> None:
    rig = rig_with(*(request(i, n_prompt=3 + i % 6) for i in range(8)))
    rig.run_until_idle()
    rig.check_stories()
    assert [len(story.texts) for story in rig.stories] == [32] * 8
    assert rig.kinds.count("decode") <= 1.3 * 32


def test_eight_jobs_together_give_what_eight_runs_alone_give() -> None:
    wanted = [request(i, n_prompt=1 + 5 * i, stop=("ab", "ccc")) for i in range(8)]
    together = rig_with(*wanted)
    together.run_until_idle()
    for job, one in enumerate(wanted):
        single = rig_with(one)
        single.run_until_idle()
        assert single.stories[0].texts == together.stories[job].texts


def test_a_stream_goes_on_while_a_long_prompt_is_computed() -> None:
    rig = rig_with(request(0))
    rig.step()
    rig.submit(request(1, n_prompt=40))
    n_before = len(rig.stories[0].texts)
    for _ in range(10):
        rig.step()
    assert len(rig.stories[0].texts) - n_before == 5
    assert len(rig.stories[1].texts) == 1


def test_a_job_that_waits_for_cells_starts_as_soon_as_they_are_free() -> None:
    rig = Rig(n_cells=100)
    first, second = rig.submit(request(0, 50, 10)), rig.submit(request(1, 50, 10))
    while not rig.stories[first].is_over:
        rig.step()
        assert not rig.stories[second].is_started
    rig.step()
    assert rig.stories[second].is_started
    rig.run_until_idle()
    rig.check_stories()


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_fills_the_context_says_so() -> None:
    rig = rig_with(request(0, n_prompt=90, max_tokens=11), request(1, n_prompt=90, max_tokens=10))
    rig.run_until_idle()
    assert [len(story.texts) for story in rig.stories] == [10, 10]
    assert rig.stories[0].end == Finished(JobKey(0), "MAX_TOKENS", is_context_full=True)
    assert rig.stories[1].end == Finished(JobKey(1), "MAX_TOKENS", is_context_full=False)


def test_a_prompt_that_leaves_room_for_one_token_draws_one() -> None:
    rig = rig_with(request(0, n_prompt=99))
    rig.run_until_idle()
    assert len(rig.stories[0].texts) == 1


def test_a_stop_completed_by_the_last_allowed_token_is_a_stop() -> None:
    plain = rig_with(request(0))
    plain.run_until_idle()
    texts = plain.stories[0].texts
    n_tokens = next(n for n in range(2, 32) if texts[n] and texts[n][-1] not in "".join(texts[:n]))
    rig = rig_with(request(0, max_tokens=n_tokens + 1, stop=(texts[n_tokens][-1],)))
    rig.run_until_idle()
    rig.check_stories()
    end = rig.stories[0].end
    assert isinstance(end, Finished)
    assert end.reason == "STOP_SEQUENCE"


def test_a_token_whose_logits_are_not_numbers_costs_its_own_job_alone() -> None:
    model = ToyModel(undrawable=frozenset({UNDRAWABLE}))
    rig = rig_with(*(request(i) for i in range(8)), model=model)
    rig.run_until_idle()
    rig.check_stories()
    failed = [story.end for story in rig.stories if isinstance(story.end, Failed)]
    assert 0 < len(failed) < 8
    assert {end.code for end in failed} == {"INFERENCE_FAILED"}


# ── cancels ──────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_job_is_out_of_the_next_step_and_says_nothing_more() -> None:
    rig = rig_with(request(0), request(1))
    rig.step()
    rig.step()
    n_texts = len(rig.stories[0].texts)
    rig.cancel(JobKey(0))
    rig.step()
    assert rig.runner.ran[-1] == ("decode", (1,))
    rig.run_until_idle()
    assert len(rig.stories[0].texts) == n_texts
    rig.check_stories()


def test_a_job_cancelled_in_prefill_leaves_no_cells_behind() -> None:
    rig = rig_with(request(0, n_prompt=20))
    rig.step()
    assert rig.runner.n_cells_used == 8
    rig.cancel(JobKey(0))
    assert rig.runner.n_cells_used == 0
    assert rig.engine.is_idle


def test_a_job_cancelled_while_it_waits_is_never_started() -> None:
    rig = rig_with(request(0), request(1), n_slots=1)
    rig.step()
    rig.cancel(JobKey(1))
    rig.run_until_idle()
    assert rig.started == [0]


def test_cancelling_an_unknown_or_ended_job_changes_nothing() -> None:
    rig = rig_with(request(0, max_tokens=1))
    rig.run_until_idle()
    n_frames = len(rig.frames)
    rig.cancel(JobKey(0))
    rig.engine.cancel(JobKey(99))
    rig.step()
    assert len(rig.frames) == n_frames


# ── steps that fail ──────────────────────────────────────────────────────────────────────────────


def test_one_poisoned_prompt_fails_alone_and_the_others_do_not_notice() -> None:
    for culprit in range(8):
        prompts = [(POISON,) if i == culprit else (10 + i,) for i in range(8)]
        rig = rig_with(*(Request(prompt, max_tokens=6) for prompt in prompts), model=POISONOUS)
        rig.run_until_idle()
        rig.check_stories()
        end = rig.stories[culprit].end
        assert end == Failed(
            JobKey(culprit), "INFERENCE_FAILED", "the model refused this job's tokens: a token is poison"
        )


def test_poison_found_while_decoding_fails_its_own_job_alone() -> None:
    rig = rig_with(*(request(i, max_tokens=40) for i in range(8)), model=POISONOUS)
    rig.run_until_idle()
    rig.check_stories()
    failed = [story for story in rig.stories if isinstance(story.end, Failed)]
    assert 0 < len(failed) < 8
    assert all(story.texts for story in failed)


def test_a_cache_without_room_costs_the_newest_job_of_the_step() -> None:
    rig = rig_with(*(request(i, n_prompt=2) for i in range(3)))
    rig.step()
    rig.next_misfortune = "no room"
    rig.step()
    end = rig.stories[2].end
    assert isinstance(end, Failed)
    assert end.code == "VRAM_OOM"
    rig.run_until_idle()
    rig.check_stories()


def test_an_aborted_step_is_run_again_as_if_it_had_not_been() -> None:
    for n_kept in range(6):
        rig = rig_with(*(request(i, max_tokens=5) for i in range(3)))
        rig.runner.n_kept_at_abort = n_kept
        while not rig.engine.is_idle:
            rig.next_misfortune = "abort" if len(rig.kinds) % 2 else None
            rig.step()
        rig.check_stories()
        assert len(rig.kinds) > 2 * 5 - 2


def test_an_abort_asked_for_between_steps_touches_no_step() -> None:
    rig = rig_with(request(0, max_tokens=3))
    rig.step()
    rig.runner.request_abort()
    rig.step()
    assert len(rig.stories[0].texts) == 2


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


def test_the_frames_of_two_jobs_in_order() -> None:
    rig = rig_with(Request((10,), max_tokens=1), Request((11,), max_tokens=2))
    rig.run_until_idle()
    rig.step()
    a, b = JobKey(0), JobKey(1)
    told: list[object] = []
    for frame in rig.frames:
        match frame:
            case StepBegun():
                told.append(frame.jobs)
            case StepDone():
                deltas, ends = [one.job for one in frame.deltas], [one.job for one in frame.finished]
                told.append((frame.kind, frame.started, deltas, ends, frame.cells_used))
    assert told == [
        (None, (a, b), [], [], 0),
        (a, b),
        ("prefill", (), [a, b], [a], 1),
        (b,),
        ("decode", (), [b], [b], 0),
    ]


def test_a_set_of_jobs_that_stays_is_announced_once() -> None:
    rig = rig_with(request(0), request(1))
    rig.run_until_idle()
    assert sum(isinstance(frame, StepBegun) for frame in rig.frames) == 1


def test_frames_carry_the_clocks_time() -> None:
    rig = rig_with(request(0, max_tokens=2))
    rig.run_until_idle()
    times = [(frame.sampled_at_s, i) for i, frame in enumerate(rig.frames) if isinstance(frame, StepDone)]
    assert all(time == i for time, i in times)
