"""The engine handles jobs, cancels, failing steps and frames, one behaviour at a time.

Every step and frame is also checked by the rig (rig.py) as it happens; test_loop_laws.py leaves the order to chance.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_runner import CELL_BYTES, Cell, FakeRunner, Request, ToyModel
from tests.engine.rig import Rig
from tests.engine.toy_constraint import N_VOCAB, ToyConstraint
from tests.queued import put_away, queued
from worker.engine.backend import KvMismatch
from worker.engine.channels import CONTENT, ControlTokens, Transition
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.prefix_cache import MIN_KEPT
from worker.engine.step import Sampled, Step
from worker.wire.jobs import (
    Delta,
    Failed,
    Finished,
    JobKey,
    MarkUse,
    SamplingParams,
    SlotId,
    StepBegun,
    StepDone,
    TokenId,
)
from worker.wire.messages import Outbound

POISON = 3
POISONOUS = ToyModel(poison=frozenset({POISON}))


def request(start: int, n_prompt: int = 4, max_tokens: int = 32, stop: tuple[str, ...] = ()) -> Request:
    """A harmless prompt that no other `start` shares."""
    prompt = tuple(10 + (start * 7 + i * i) % 50 for i in range(n_prompt))
    return Request(prompt, max_tokens, stop, seed=start)


def rig_with(*wanted: Request, model: ToyModel | None = None, n_slots: int = 8, chunk: int = 8) -> Rig:
    rig = Rig(model, n_slots=n_slots, chunk=chunk)
    for one in wanted:
        rig.submit(one)
    return rig


@given(
    n_jobs=st.integers(0, 3),
    slot=st.integers(0, 8),
    n_more=st.integers(-2, 2),
    n_uncounted=st.integers(-2, 2),
    is_keeping=st.booleans(),
)
def test_cells_that_the_library_counts_otherwise_end_an_idle_engine_with_both_numbers(
    n_jobs: int, slot: int, n_more: int, n_uncounted: int, is_keeping: bool
) -> None:
    """The ninth slot retains the last job's tokens."""
    rig = Rig(prefix_cache_bytes=10_000 * is_keeping)
    for job in range(n_jobs):
        rig.submit(request(job, n_prompt=20))
    rig.run_until_idle()
    cells, n_retained = rig.runner.kv.cells[slot], rig.n_retained
    n_before = len(cells)
    assert n_before == (n_retained if slot == 8 else 0)
    cells += [Cell(TokenId(0), n_before + i) for i in range(n_more)]
    if n_more < 0:
        del cells[n_more:]
    rig.runner.kv.n_cells -= n_uncounted
    if len(cells) != n_before:
        with pytest.raises(KvMismatch, match=f"slot {slot} holds {len(cells)} tokens .* knows of {n_before}"):
            rig.step()
    elif n_uncounted:
        with pytest.raises(KvMismatch, match=f"{n_retained + n_uncounted} cells .* knows of {n_retained}"):
            rig.step()
    else:
        rig.step()


def test_a_job_that_fills_the_context_says_so() -> None:
    rig = rig_with(request(0, n_prompt=90, max_tokens=11), request(1, n_prompt=90, max_tokens=10))
    rig.run_until_idle()
    assert [len(story.texts) for story in rig.stories] == [10, 10]
    assert rig.stories[0].end == Finished(JobKey(0), "MAX_TOKENS", is_context_full=True)
    assert rig.stories[1].end == Finished(JobKey(1), "MAX_TOKENS", is_context_full=False)


@pytest.mark.parametrize("n_prompt", [1, 20, 100])
def test_a_job_that_wants_no_token_ends_when_its_prompt_is_computed(n_prompt: int) -> None:
    """The longest one fills the context, and is not cut."""
    rig = rig_with(request(0, n_prompt, max_tokens=0), request(1))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.stories[0].texts == []
    assert rig.stories[0].end == Finished(JobKey(0), "MAX_TOKENS", is_context_full=False)


def test_one_poisoned_prompt_fails_alone_and_the_others_do_not_notice() -> None:
    for culprit in range(8):
        prompts = [(POISON,) if i == culprit else (10 + i,) for i in range(8)]
        rig = rig_with(*(Request(prompt, max_tokens=6) for prompt in prompts), model=POISONOUS)
        rig.step()
        assert [len(story.texts) for story in rig.stories] == [int(i != culprit) for i in range(8)]
        rig.run_until_idle()
        rig.check_stories()
        end = rig.stories[culprit].end
        assert end == Failed(
            JobKey(culprit), "INFERENCE_FAILED", "the model refused this job's tokens: a token is poison"
        )


def test_what_a_paused_job_had_computed_is_not_computed_again_while_there_is_room_to_keep_it() -> None:
    n_computed, n_victims = [], 0
    for n_kept in (0, 1000):
        rig = Rig(n_cells=100, prefix_cache_bytes=n_kept * CELL_BYTES)
        for i in range(3):
            rig.submit(request(i, n_prompt=20, max_tokens=60))
        rig.run_until_idle()
        rig.check_stories()
        assert rig.n_victims > 0
        n_computed.append(rig.runner.n_computed)
        n_victims = rig.n_victims
    n_needed = 3 * (20 + 60 - 1)
    assert n_computed[1] <= n_needed + n_victims * (MIN_KEPT + 1) < n_computed[0]


COMMON = tuple(range(10, 58))


def test_a_prefix_that_many_ask_for_at_once_is_computed_once() -> None:
    rig = Rig(chunk=8, n_cells=800, context_length=100)
    for i in range(8):
        rig.submit(Request((*COMMON, 10 + i), max_tokens=4, seed=i))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.n_cached == {JobKey(0): 0} | {JobKey(i): len(COMMON) for i in range(1, 8)}
    assert rig.runner.n_computed == len(COMMON) + 8 * 4


def test_a_job_does_not_wait_for_a_prefix_shorter_than_a_chunk() -> None:
    rig = Rig(chunk=16)
    rig.submit(Request((*COMMON[:10], *range(20, 60)), max_tokens=4))
    rig.submit(Request((*COMMON[:10], 1), max_tokens=4))
    rig.step()
    assert rig.started == [0, 1]


def test_a_later_job_finds_what_a_finished_one_computed_prompt_and_answer() -> None:
    rig = Rig(prefix_cache_bytes=1000 * CELL_BYTES)
    first = rig.submit(Request(COMMON, max_tokens=8))
    rig.run_until_idle()
    answer = tuple(alone_tokens(rig, first))
    second = rig.submit(Request((*COMMON, *answer, 5, 6), max_tokens=8))
    rig.run_until_idle()
    rig.check_stories()
    assert rig.n_cached[second] == len(COMMON) + 7, "the last token of an answer is not computed"


def test_the_last_jobs_cells_stay_until_another_runs_that_does_not_go_on_from_them() -> None:
    rig = Rig(prefix_cache_bytes=1000 * CELL_BYTES)
    index = rig.engine.prefix_cache.index
    rig.submit(Request(COMMON, max_tokens=4))
    rig.run_until_idle()
    assert rig.runner.kv.n_cells_used == len(COMMON) + 3
    rig.submit(Request((*COMMON, *alone_tokens(rig, JobKey(0)), 7), max_tokens=4))
    rig.run_until_idle()
    assert index.n_tokens == 0, "it went on from all of them"
    rig.submit(Request((1, 2, 3), max_tokens=4))
    rig.run_until_idle()
    assert index.n_tokens == len(COMMON) + 8
    put_away(rig.engine)
    assert rig.runner.kv.n_cells_used == 0
    assert index.n_bytes == index.n_tokens * CELL_BYTES > 0


def alone_tokens(rig: Rig, job: JobKey) -> list[TokenId]:
    request = rig.requests[job]
    return rig.model.answer_of(request.prompt, request.max_tokens, request.seed)


def test_a_copy_that_the_cache_could_not_hold_is_not_made() -> None:
    rig = Rig(n_slots=2, prefix_cache_bytes=30 * CELL_BYTES, n_retained=0)
    for n in (20, 40, 41, 42):
        rig.submit(Request((*COMMON[:n], 1), max_tokens=1, seed=n))
        rig.run_until_idle()
    rig.check_stories()
    assert rig.runner.kv.n_saved == 20 + 1


def test_deterministic_jobs_have_all_their_cells_from_the_start_and_are_never_paused() -> None:
    rig = Rig(chunk=8, n_cells=100, is_deterministic=True)
    for i in range(4):
        rig.submit(request(i, n_prompt=10, max_tokens=40))
    rig.step()
    assert rig.started == [0, 1]
    rig.run_until_idle()
    rig.check_stories()
    assert rig.n_victims == 0


def test_deterministic_answers_are_no_prefixes() -> None:
    """A prompt's tokens are computed in chunks, an answer's one by one."""
    rig = Rig(chunk=8, prefix_cache_bytes=1000 * CELL_BYTES, is_deterministic=True)
    first = rig.submit(Request(COMMON, max_tokens=20))
    rig.run_until_idle()
    second = rig.submit(Request((*COMMON, *alone_tokens(rig, first), 5), max_tokens=2))
    rig.run_until_idle()
    assert rig.n_cached[second] == len(COMMON)


def test_deterministic_prefixes_end_at_a_chunks_edge() -> None:
    rig = Rig(chunk=16, prefix_cache_bytes=1000 * CELL_BYTES, is_deterministic=True)
    for n in (45, 48):
        rig.submit(Request((*COMMON[:n], 1, 2), max_tokens=3))
        rig.run_until_idle()
    rig.submit(Request((*COMMON[:32], 3), max_tokens=30))
    rig.step()
    rig.submit(Request((*COMMON[:40], 4), max_tokens=3))
    rig.run_until_idle()
    rig.check_stories()
    assert list(rig.n_cached.values()) == [0, 32, 32, 32]


CHEAP_ROWS = ((1, 1.0), (32, 1.1))


def test_drafts_give_the_same_text_in_fewer_steps_where_it_repeats_itself() -> None:
    n_steps = []
    for row_costs in ((), CHEAP_ROWS):
        rig = Rig(ToyModel(n_seen=1), row_costs=row_costs, context_length=200)
        rig.submit(Request((1, 2, 3), max_tokens=120))
        rig.run_until_idle()
        rig.check_stories()
        n_steps.append(rig.kinds.count("decode"))
    assert n_steps[1] < n_steps[0] / 3


def test_a_job_like_an_earlier_one_takes_fewer_steps_and_gives_the_same_text() -> None:
    n_steps = []
    for history_bytes in (0, 16 * 1000):
        rig = Rig(ToyModel(n_seen=4), row_costs=CHEAP_ROWS, history_bytes=history_bytes, context_length=200)
        for number in (21, 22, 23):
            n_before = rig.kinds.count("decode")
            rig.submit(Request((number, 5, 6, 7, 8), max_tokens=60))
            rig.run_until_idle()
            n_steps.append(rig.kinds.count("decode") - n_before)
        rig.check_stories()
    assert n_steps[0] == n_steps[1] == n_steps[2] == n_steps[3]
    assert max(n_steps[4:]) < n_steps[3] / 4


def test_jobs_next_to_others_learn_from_those_that_have_ended() -> None:
    """A job's text is made known in parts, after the steps of those that go on."""
    rig = Rig(ToyModel(n_seen=4), row_costs=CHEAP_ROWS, history_bytes=16 * 1000, context_length=400)
    rig.submit(Request((9, 10), max_tokens=350, seed=1))
    for number in (21, 22):
        job = rig.submit(Request((number, 5, 6, 7, 8), max_tokens=60))
        while not rig.stories[job].is_over:
            rig.step()
    assert not rig.engine.is_idle
    rig.run_until_idle()
    rig.check_stories()
    first, second = (end for story in rig.stories[1:] if isinstance(end := story.end, Finished))
    assert second.n_accepted > first.n_accepted + 30


def test_a_halved_step_whose_first_half_finds_no_room_goes_on_without_the_job_it_paused() -> None:
    for n_jobs in (3, 4, 5):
        prompts = [(POISON,), *((10 + i,) for i in range(1, n_jobs))]
        rig = rig_with(*(Request(prompt, max_tokens=6) for prompt in prompts), model=POISONOUS)
        rig.runner.before_run = without_room_in_the_second_run(rig, rig.runner.before_run)
        rig.run_until_idle()
        rig.check_stories()
        assert rig.n_victims == 1


def without_room_in_the_second_run(rig: Rig, before_run: Callable[[Step], None]) -> Callable[[Step], None]:
    n_runs = count(1)

    def at_run(step: Step) -> None:
        before_run(step)
        if next(n_runs) == 2:
            rig.runner.has_room = False

    return at_run


def test_an_abort_asked_for_between_steps_touches_no_step() -> None:
    rig = rig_with(request(0, max_tokens=3))
    rig.step()
    rig.runner.request_abort()
    rig.step()
    assert len(rig.stories[0].texts) == 2


def test_the_frames_of_two_jobs_in_order() -> None:
    rig = rig_with(Request((10,), max_tokens=1), Request((11,), max_tokens=2))
    rig.run_until_idle()
    rig.step()
    a, b = JobKey(0), JobKey(1)
    reported: list[object] = []
    for frame in rig.frames:
        match frame:
            case StepBegun():
                reported.append(frame.jobs)
            case StepDone():
                deltas, ends = [one.job for one in frame.deltas], [one.job for one in frame.finished]
                started = tuple(each.job for each in frame.started)
                reported.append((frame.kind, started, deltas, ends, frame.cells_used))
    assert reported == [
        (None, (a, b), [], [], 0),
        (a, b),
        ("prefill", (), [a, b], [a], 1),
        (b,),
        ("decode", (), [b], [b], 0),
    ]


MARK = TokenId(N_VOCAB)
"""It is never drawn."""


def ended_with(
    marks: ControlTokens,
    use: MarkUse,
    prompt: list[TokenId],
    constraint: ToyConstraint | None = None,
    stop: tuple[str, ...] = (),
) -> tuple[list[Delta], Finished]:
    """All deltas of the only job of an engine with these marks, and the end."""
    frames: list[Outbound] = []
    config = EngineConfig(n_slots=1, n_cells=100, context_length=100, chunk=8)
    engine = Engine(FakeRunner.of(ToyModel(), config), config, emit=frames.append, clock=lambda: 0.0, marks=marks)
    sampling = SamplingParams(seed=1)
    engine.submit(queued(JobKey(0), prompt, 8, sampling, stop, constraint=constraint, marks=use))
    while not engine.is_idle:
        engine.step()
    steps = [frame for frame in frames if isinstance(frame, StepDone)]
    [finished] = [each for step in steps for each in step.finished]
    return [delta for step in steps for delta in step.deltas], finished


PROMPT = [TokenId(7), MARK, TokenId(8)]
MARKS = {turn: ControlTokens({MARK: "<mark>"}, {MARK: turn}) for turn in Transition}


@pytest.mark.parametrize("turn", Transition)
def test_a_constraint_knows_where_a_divided_answer_begins(turn: Transition) -> None:
    """All other answers are content from their first token."""
    divided, hidden = ToyConstraint(1), ToyConstraint(1)
    ended_with(MARKS[turn], "split", PROMPT, divided)
    ended_with(MARKS[turn], "hidden", PROMPT, hidden)
    assert divided.place == MARKS[turn].place_after(PROMPT)
    assert hidden.place == CONTENT


@pytest.mark.parametrize("turn", Transition)
def test_a_prompt_that_has_opened_the_reasoning_makes_the_answer_begin_there(turn: Transition) -> None:
    deltas, _ = ended_with(MARKS[turn], "split", PROMPT)
    assert any(delta.text for delta in deltas if not delta.is_reasoning) == (turn is not Transition.THINK)


def test_a_stop_that_waited_because_a_marker_might_have_begun_ends_the_answer() -> None:
    """The answer ends before anything can follow the stop."""

    prompt = [TokenId(7)]
    deltas, _ = ended_with(ControlTokens({}, {}), "split", prompt)
    text = "".join(delta.text for delta in deltas)
    n_last = next(n for n in range(1, len(text)) if text.find(text[-n:]) == len(text) - n)
    stop = text[-n_last:]
    marks = ControlTokens({}, {}, text_markers=(f"{stop}?", "</t>"))
    deltas, finished = ended_with(marks, "split", prompt, stop=(stop,))
    shown = "".join(delta.text for delta in deltas)
    assert (shown, finished.reason, finished.stop) == (text[:-n_last], "STOP_SEQUENCE", stop)


VECTOR_PROMPT = (1,)
FIRST_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Script(ToyModel):
    """Draws these tokens one after the other, then dots; `tokens` are their ids, else they count up."""

    pieces: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int, constraint: ToyConstraint | None = None) -> Sampled:
        assert constraint is None
        n_drawn = len(held) - len(VECTOR_PROMPT)
        text = self.pieces[n_drawn] if n_drawn < len(self.pieces) else "."
        token = self.tokens[n_drawn] if n_drawn < len(self.tokens) else FIRST_TOKEN + n_drawn
        return Sampled(slot, TokenId(token), text.encode(), is_end=token in self.ends)


VECTORS = [json.loads(line) for line in Path(__file__).with_name("stop_vectors.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_a_job_ends_as_its_vector_says(vector: dict[str, Any]) -> None:
    """The protocol notes' vectors (B.8), on a model that draws the vector's tokens."""
    script = Script(pieces=(*vector["pieces"],), tokens=(*vector["tokens"],), ends=frozenset(vector["ends"]))
    rig = rig_with(Request(VECTOR_PROMPT, vector["max_tokens"], (*vector["stop"],)), model=script)
    rig.run_until_idle()
    rig.check_stories()
    [story] = rig.stories
    assert (story.texts, story.end) == (vector["texts"], Finished(JobKey(0), vector["reason"], vector["matched"]))
