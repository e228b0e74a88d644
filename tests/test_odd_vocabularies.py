"""A model whose vocabulary has gaps is served: what is missing is named, and a text that needs it is a 400.

tests/llama/test_odd_vocabularies.py has every kind of gap and of text; here a whole worker has one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llama.odd_vocabularies import NO_BYTES, REFUSED
from tests.llama.tiny import write_tiny
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.process

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SECRET = "a\U0001f600 \u4e2d"
"""The last character has no token: U+4E2D at position 3."""

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": SECRET}),
    ("/tokenize", {"messages": [{"role": "user", "content": SECRET}]}),
    ("/v1/completions", {"prompt": SECRET, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}),
    ("/execute", {"job_id": "j", "prompt": SECRET, "max_tokens": 1}),
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    path = write_tiny(
        tmp_path_factory.mktemp("gaps") / "m.gguf", own_vocabulary=NO_BYTES, chat_template=TEMPLATE, context_length=64
    )
    with WorkerProcess("--model", str(path), "--port", "0", "--device", "cpu") as worker:
        yield worker.ready()


def test_what_is_missing_is_reported_and_a_text_that_needs_it_is_a_400_that_names_the_character(
    worker: WorkerProcess,
) -> None:
    (line,) = [entry for entry in worker.log if entry["event"] == "model_load_start"]
    assert line["vocabulary"] == ["241 of 243 bytes have no token; texts with characters that need one are refused"]
    for path, body in ASKED * 4:
        answer = worker.post(path, json=body)
        assert answer.status_code == 400, (path, answer.text)
        assert "U+4E2D, at position 3" in answer.text
        assert not any(spelled in answer.text for spelled in ("\u4e2d", "\\u4e2d"))
    assert worker.metrics()["worker_engine_restarts_total"] == 0
    assert worker.post("/tokenize", json={"prompt": "a b\u00e9"}).status_code == 200
    assert worker.run(prompt="a b\u00e9", max_tokens=2)[-1]["type"] == "end"


def test_a_vocabulary_that_ends_the_library_is_one_line_before_the_engine_starts(tmp_path: Path) -> None:
    vocabulary, why = REFUSED["a doubled token"]
    path = write_tiny(tmp_path / "m.gguf", own_vocabulary=vocabulary)
    with WorkerProcess("--model", str(path), "--port", "0") as worker:
        line = worker.failure()
    assert [entry["event"] for entry in worker.log] == ["startup", "error", "shutdown"]
    assert line["code"] == "MODEL_LOAD_FAILED"
    assert why in line["message"]
