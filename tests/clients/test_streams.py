"""A stream of the `/v1` door is whole whatever the model says, and whichever client leaves or engine dies."""

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from pathlib import Path

import pytest

from tests.clients.v1 import CHAT, COMPLETIONS, ask, chunks_of, content, pieces_of, streamed, streaming, user
from tests.crashing_engine import STALL
from tests.crashing_worker import crashing_worker
from tests.worker_process import Event, WorkerProcess, eventually, serving

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.usefixtures("default_model")]

AT_ONCE = 8
N_STOPS = 48

ALPHABETS = (
    *("[一-龥]", "[а-я]", "[😀-🙏]", "[α-ω]", "[가-힣]", "[à-ÿ]", "[🇦-🇿]", "[a世😀]", "[\u0900-\u097f]"),
    "[👍🏽👩‍🚀 ]",
)
TEXTS = (
    *(
        "Grüße aus Köln",
        "Привет, мир",
        "你好，世界",
        "안녕하세요 세계",
        "👩‍🚀🚀✨",
        "नमस्ते दुनिया",
        "ναι ή όχι;",
        "𝕏𝕪𝕫 ﷽",
    ),
)
TALES = (
    *("Tell me a story about a lighthouse.", "Count from one to thirty.", "Write a list of ten fruits."),
    "Explain rain.",
)


quick = serving("any_model", "--parallel", str(AT_ONCE), "--ctx-size", "8192")
"""This one's answers make no sense, and are soon computed."""


def all_at_once(jobs: list[Event], worker: WorkerProcess) -> list[list[Event]]:
    """The chunks of each, eight at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda job: streamed(worker, **job), jobs))


def said(chunks: list[Event]) -> str:
    return "".join(pieces_of(chunks))


@pytest.mark.parametrize("n_answers", [40, pytest.param(200, marks=pytest.mark.clients)])
def test_no_answer_has_half_a_character(quick: WorkerProcess, n_answers: int) -> None:
    """The answers are held to letters of two to four bytes, which are several tokens each, and cut anywhere."""
    chance = random.Random(17)
    jobs: list[Event] = [
        {
            "messages": user(f"{TEXTS[number % len(TEXTS)]} {number}"),
            "regex": f"{ALPHABETS[number % len(ALPHABETS)]}{{1,20}}",
            "max_tokens": chance.randrange(1, 14),
            "temperature": 1.0,
            "seed": number,
        }
        for number in range(n_answers)
    ]
    answers = all_at_once(jobs, quick)
    texts = [said(chunks) for chunks in answers]
    assert not [text for text in texts if "\ufffd" in text]
    assert sum(any(len(letter.encode()) > 1 for letter in text) for text in texts) > n_answers / 2
    for job, text in islice(zip(jobs, texts, strict=True), 0, None, 20):
        assert content(ask(quick, **job)) == text


def test_a_stop_never_shows_wherever_it_is_cut_into_tokens(quick: WorkerProcess) -> None:
    """Stops of random length, from random places of the answer that would come without them."""
    chance = random.Random(23)
    asked: list[Event] = [
        {"messages": user(tale), "max_tokens": 48, "temperature": 0.9, "seed": number}
        for number, tale in enumerate(TALES)
    ]
    wholes = [said(streamed(quick, **job)) for job in asked]
    jobs: list[Event] = []
    expected = []
    for number in range(N_STOPS):
        whole = wholes[number % len(TALES)]
        starts = [chance.randrange(len(whole) - 12) for _ in range(1 + number % 3)]
        stops = [whole[start : start + chance.randrange(1, 12)] for start in starts]
        jobs.append({**asked[number % len(TALES)], "stop": stops})
        # The stop that is completed first ends the text; of several that one character completes, the first asked for.
        ends = [(whole.index(stop) + len(stop), order) for order, stop in enumerate(stops)]
        end, order = min(ends)
        expected.append(whole[: end - len(stops[order])])
    for job, text, chunks in zip(jobs, expected, all_at_once(jobs, quick), strict=True):
        assert said(chunks) == text, job["stop"]
        assert all(text.startswith(shown) for shown in accumulate(pieces_of(chunks)))
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_eight_chats_at_once_are_answered_as_each_alone(worker: WorkerProcess) -> None:
    jobs: list[Event] = [
        {
            # Each tale once greedily and once by chance: two greedy answers to one tale may be the same.
            "messages": user(f"{TALES[number // 2]} ({number})"),
            "max_tokens": 40,
            "seed": number,
            "temperature": 0.9 * (number % 2),
        }
        for number in range(AT_ONCE)
    ]
    alone = [content(ask(worker, **job)) for job in jobs]
    assert [said(chunks) for chunks in all_at_once(jobs, worker)] == alone
    assert len(set(alone)) == len(jobs)


def test_a_conversation_reads_only_its_last_turn_again(quick: WorkerProcess) -> None:
    """Twelve turns: all but the last question and what the template puts around it was computed before."""
    messages: list[Event] = [{"role": "system", "content": "You answer in one short sentence."}]
    n_known = 0
    for turn in range(12):
        messages += user(f"Question number {turn}: what is {turn} and {turn}?")
        answer = ask(quick, messages=messages, max_tokens=16)
        usage = answer["usage"]
        n_read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        if turn:
            n_new = usage["prompt_tokens"] - n_known
            assert n_read <= n_new + 1, (turn, usage)
        n_known = usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": content(answer)})


def test_a_client_that_leaves_frees_its_slot_before_the_next_step(any_model: Path) -> None:
    """The engine stands in a decode step when the client leaves; there is no other after it."""
    with crashing_worker(any_model, "--parallel", "1") as crashing:
        worker = crashing.worker.ready()
        crashing.gates.shut("decode")
        with streaming(worker, COMPLETIONS, prompt=f"{STALL}Hello", max_tokens=200) as response:
            assert next(chunks_of(response))["choices"]
        eventually(lambda: worker.metrics()['worker_requests_total{outcome="cancelled"}'] == 1)
        crashing.gates.open("decode")
        eventually(worker.is_idle)
        assert worker.metrics()['worker_steps_total{kind="decode"}'] == 1
        assert content(ask(worker, messages=user("Hello"), max_tokens=4))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_engine_that_dies_in_mid_stream_is_an_error_and_the_next_request_works(path: str, any_model: Path) -> None:
    """One that has not said anything yet is answered by the next engine."""
    with crashing_worker(any_model, "--parallel", "2") as crashing:
        worker = crashing.worker.ready()
        asked = {"messages": user("Count.")} if path == CHAT else {"prompt": "One, two,"}
        before = ask(worker, path, **asked, max_tokens=8)
        with streaming(worker, path, **asked, max_tokens=1500, ignore_eos=True) as response:
            chunks = chunks_of(response)
            while not pieces_of([next(chunks)]):
                pass
            worker.engine.kill()
            *_, last = chunks
        assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "engine_restarted")
        assert set(last["error"]) == {"message", "type", "param", "code"}
        crashing.replaced()
        after = ask(worker, path, **asked, max_tokens=8)
        assert after["choices"] == before["choices"]
