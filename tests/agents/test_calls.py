"""Calls as a trained model writes them, in whatever form: they are read as calls, and other answers are not.

`make models-test` runs this.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.agents.questions import WITH_NEED, WITHOUT_NEED, Json
from tests.web.openai_client import CHAT, COMPLETIONS, ask, chunks
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.models, pytest.mark.model, pytest.mark.process, pytest.mark.timeout(7200)]

MODEL = "qwen2.5-coder-1.5b-instruct"
N_AT_ONCE = 4
MAX_TOKENS = 128
MARKERS = ("<tool_call>", "</tool_call>", "<|im_end|>", "<tool_response>")
MIN_READ = 0.9
"""The share of the written calls that must be read as calls."""
MAX_MISREAD = 0.02
"""The share of the answers to questions without need of a tool that may be read as calls although they have none."""


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


def answers(worker: WorkerProcess, sets: list[tuple[list[Json], tuple[str, ...]]]) -> list[Answered]:
    asked = [(tools, question) for tools, questions in sets for question in questions]
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        return list(pool.map(lambda each: answered(worker, *each), asked))


def check_content(found: list[Answered]) -> None:
    for each in found:
        assert not any(marker in (each.message["content"] or "") for marker in MARKERS), each.message


def test_calls_are_read_in_the_forms_in_which_the_model_writes_them(worker: WorkerProcess) -> None:
    found = answers(worker, WITH_NEED)
    assert len(found) >= 60
    check_content(found)
    written = [each for each in found if each.is_written]
    assert len(written) >= len(found) // 2, "the model hardly calls"
    unread = [(each.question, each.raw) for each in written if not each.calls]
    assert len(unread) <= (1 - MIN_READ) * len(written), unread
    for each in found:
        for call in each.calls:
            assert call["function"]["name"] in each.names
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_answers_without_a_call_are_not_read_as_calls(worker: WorkerProcess) -> None:
    """This model calls tools without need, too. Such a call is one, so only answers in which it wrote none count."""
    found = answers(worker, WITHOUT_NEED)
    assert len(found) >= 60
    check_content(found)
    misread = [(each.question, each.raw, each.message) for each in found if each.calls and not each.is_written]
    assert len(misread) <= MAX_MISREAD * len(found), misread
