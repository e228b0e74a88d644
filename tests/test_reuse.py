"""Nothing that saves work changes an answer: shared and kept prefixes, and pauses; over real processes.

The truth is a worker that has none of these: one slot, no prefix cache, no prompt lookup.
"""

from contextlib import ExitStack

import pytest

from tests.worker_process import Event, WorkerProcess, eventually, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 8
QUESTIONS = ("Then", "His wife", "Far away", "Suddenly the wind", "Nobody knew", "One of the gulls")
ASKED: tuple[Event, ...] = tuple(
    {"prompt": STORY + question, "max_tokens": 24, "temperature": 0.8 * (i % 2), "seed": i}
    for i, question in enumerate(QUESTIONS)
)
PARTICULAR: tuple[Event, ...] = (
    {"grammar": 'root ::= ([a-z]+ " ")+', "min_tokens": 100},
    {"logprobs": 2, "min_tokens": 100, "frequency_penalty": 0.5, "stop": ["zzz"]},
    {"ignore_eos": True, "repetition_penalty": 1.2},
)
GROWING: tuple[Event, ...] = tuple(
    {"prompt": f"{question}, it was said,", "max_tokens": 200, "temperature": 0.8, "seed": i}
    | PARTICULAR[i % len(PARTICULAR)]
    for i, question in enumerate(QUESTIONS)
)
N_CELLS = 512
"""The growing jobs need some 1,260 together, and none more than 220."""


PLAIN = ("--ctx-size", "2048", "--parallel", "1", "--prefix-cache-mb", "0", "--prompt-lookup", "off")
plain = serving("any_model", *PLAIN)
worker = serving("any_model", "--ctx-size", str(N_CELLS))


def at_once(worker: WorkerProcess, requests: tuple[Event, ...]) -> list[list[Event]]:
    with ExitStack() as open_streams:
        streams = [open_streams.enter_context(worker.stream(**request)) for request in requests]
        return [list(stream) for stream in streams]


@pytest.mark.one_order
def test_a_prefix_asked_for_at_once_is_computed_once_and_answers_are_those_of_a_plain_worker(
    plain: WorkerProcess, worker: WorkerProcess
) -> None:
    expected = [plain.text(**request) for request in ASKED]
    answers = at_once(worker, ASKED)
    assert [text_of(events) for events in answers] == expected
    n_cached = [events[0]["cached_tokens"] for events in answers]
    n_common = min(events[0]["prompt_tokens"] for events in answers) - 4
    assert sum(n >= n_common for n in n_cached) == len(ASKED) - 1
    again = [worker.run(**request) for request in ASKED]
    assert [text_of(events) for events in again] == expected
    assert all(events[0]["cached_tokens"] == events[0]["prompt_tokens"] - 1 for events in again)
    assert worker.metrics()["worker_prefix_tokens_reused_total"] == sum(
        events[0]["cached_tokens"] for events in (*answers, *again)
    )


def test_a_conversation_goes_on_from_the_answer_without_reading_it_again(
    plain: WorkerProcess, worker: WorkerProcess
) -> None:
    """The answer is a word that is tokenised as it was drawn."""
    (sea,) = worker.post("/tokenize", json={"prompt": " sea", "add_special_tokens": False}).json()["tokens"]
    request: Event = {**ASKED[0], "logit_bias": {str(sea): 100}}
    first = worker.run(**request)
    request["prompt"] += text_of(first) + " And so"
    second = worker.run(**request)
    assert text_of(second) == plain.text(**request)
    assert second[0]["cached_tokens"] > first[0]["prompt_tokens"] + 8


@pytest.mark.one_order
def test_jobs_that_outgrow_the_cells_pause_and_answer_as_alone(plain: WorkerProcess, worker: WorkerProcess) -> None:
    expected = [plain.text(**request) for request in GROWING]
    answers = at_once(worker, GROWING)
    assert [text_of(events) for events in answers] == expected
    assert worker.metrics()["worker_preemptions_total"] > 0
    eventually(worker.is_idle)
    assert worker.metrics()["worker_kv_cells_used"] == 0
