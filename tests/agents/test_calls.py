"""Calls as a trained model writes them, in whatever form: they are read as calls, and other answers are not.

`make models-test` runs this and prints the counts, which docs/measurements/2026-11-calls.md has next to llama-server's.
questions.json has 60 questions that need a tool and 60 that need none, and as many again. They are our own. All of one
subject have the same tools, so that their prompts share a prefix. The limit of `worker/apis/core/reading.py` was chosen
by the first 120; the others, with other tools, were written afterwards.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agents.shapes import Json
from tests.server.web.openai_client import CHAT, COMPLETIONS, ask, chunks
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.models, pytest.mark.model, pytest.mark.process, pytest.mark.timeout(7200)]

MODEL = "qwen2.5-coder-1.5b-instruct"
N_AT_ONCE = 4
MAX_TOKENS = 128
MARKERS = ("<tool_call>", "</tool_call>", "<|im_end|>", "<tool_response>")
MIN_READ = 0.9
"""The share of the written calls that must be read as calls."""
MAX_MISREAD = 0.02
"""The share of the questions without need of a tool whose answers may be read as calls."""
FORMS = {"tool_call": "<tool_call>", "tools": "<tools>", "fence": "```"}
"""The markers of the forms in which the model writes a call; the first that an answer has counts."""


@dataclass(frozen=True)
class Answered:
    """An answer, and the text that the model writes to the same prompt if nothing is read."""

    question: str
    raw: str
    names: tuple[str, ...]
    """The tools that were offered."""
    message: Json

    @property
    def is_written(self) -> bool:
        """True if the model has written a call of an offered tool, in any form."""
        names = "|".join(map(re.escape, self.names))
        return re.search(rf'"(?:name|function|tool)"\s*:\s*"(?:{names})"|\b(?:{names})\(', self.raw) is not None

    @property
    def form(self) -> str:
        """The form of the text, if it is a call: a name in FORMS, or `bare`."""
        return next((name for name, marker in FORMS.items() if marker in self.raw), "bare")

    @property
    def calls(self) -> list[Json]:
        calls: list[Json] = self.message.get("tool_calls", [])
        return calls


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("--model", MODEL, "--port", "0", "--parallel", str(N_AT_ONCE)) as worker:
        yield worker.ready()


def answered(worker: WorkerProcess, tools: list[Json], question: str) -> Answered:
    """Ask whole and streamed, check that both are the same, and ask for the text alone."""
    messages = [{"role": "user", "content": question}]
    fields: Json = {"messages": messages, "tools": tools, "temperature": 0}
    rendered = worker.post(f"{CHAT}/render", json=fields).json()["token_ids"]
    limit = {"max_tokens": MAX_TOKENS}
    raw = ask(worker, COMPLETIONS, {"prompt": rendered, "temperature": 0, **limit})["choices"][0]["text"]
    message = ask(worker, CHAT, fields | limit)["choices"][0]["message"]
    assert streamed(chunks(worker, CHAT, fields | limit)) == (
        message["content"] or "",
        [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])],
    )
    return Answered(question, raw, tuple(tool["function"]["name"] for tool in tools), message)


def streamed(frames: list[Any]) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls of a stream."""
    deltas = [frame["choices"][0]["delta"] for frame in frames[:-1]]
    parts = [call for delta in deltas for call in delta.get("tool_calls", [])]
    calls = [
        (part["function"]["name"], "".join(each["function"]["arguments"] for each in parts if each["index"] == at))
        for at, part in enumerate(part for part in parts if "id" in part)
    ]
    return "".join(delta.get("content") or "" for delta in deltas), calls


def tool_of(told: Json) -> Json:
    """A tool, whose arguments' types are words."""
    properties = {key: {"type": kind} for key, kind in told["properties"].items()}
    parameters = {"type": "object", "properties": properties, "required": told["required"]}
    named = {key: told[key] for key in ("name", "description")}
    return {"type": "function", "function": named | {"parameters": parameters}}


SUBJECTS: list[Json] = [*json.loads((Path(__file__).parent / "questions.json").read_text()).values()]
SETS = ("first", "second")


def answers(worker: WorkerProcess, of: str, need: str) -> list[Answered]:
    subjects = [subject for subject in SUBJECTS if subject["set"] == of]
    asked = [([*map(tool_of, subject["tools"])], question) for subject in subjects for question in subject[need]]
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        found = list(pool.map(lambda each: answered(worker, *each), asked))
    return counted(f"{of}, {need.replace('_', ' ')} of a tool", found)


@pytest.fixture(scope="module", params=SETS)
def with_need(worker: WorkerProcess, request: pytest.FixtureRequest) -> list[Answered]:
    return answers(worker, request.param, "with_need")


@pytest.fixture(scope="module", params=SETS)
def without_need(worker: WorkerProcess, request: pytest.FixtureRequest) -> list[Answered]:
    return answers(worker, request.param, "without_need")


def counted(title: str, found: list[Answered]) -> list[Answered]:
    """Print the counts of a set."""
    written = [each for each in found if each.is_written]
    forms = Counter(each.form for each in written)
    n_read, n_of_written = (sum(bool(each.calls) for each in some) for some in (found, written))
    sys.stdout.write(
        f"\n{MODEL}, {len(found)} questions {title}: {len(written)} answers have an offered tool's call, in the forms "
        f"{dict(forms)}; {n_read} are read as calls, {n_of_written} of them among these\n"
    )
    return found


def check_content(found: list[Answered]) -> None:
    assert len(found) >= 60
    for each in found:
        assert not any(marker in (each.message["content"] or "") for marker in MARKERS), each.message


def test_calls_are_read_in_the_forms_in_which_the_model_writes_them(with_need: list[Answered]) -> None:
    check_content(with_need)
    written = [each for each in with_need if each.is_written]
    assert len(written) >= len(with_need) // 2, "the model hardly calls"
    unread = [(each.question, each.raw) for each in written if not each.calls]
    assert len(unread) <= (1 - MIN_READ) * len(written), unread
    for each in with_need:
        for call in each.calls:
            assert call["function"]["name"] in each.names
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_an_answer_in_which_the_model_wrote_no_call_is_not_read_as_one(without_need: list[Answered]) -> None:
    check_content(without_need)
    misread = [(each.question, each.raw, each.message) for each in without_need if each.calls and not each.is_written]
    assert not misread


def test_an_answer_to_a_question_without_need_of_a_tool_is_not_read_as_a_call(without_need: list[Answered]) -> None:
    """The model writes a call in most of these answers, too, but is not sure of the tool then."""
    assert sum(each.is_written for each in without_need) >= len(without_need) // 3, "the model hardly calls"
    read = [(each.question, each.raw) for each in without_need if each.calls]
    assert len(read) <= MAX_MISREAD * len(without_need), read
