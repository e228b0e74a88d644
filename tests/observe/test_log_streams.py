"""The sources and ends of log lines: other libraries, a stderr that fails, the engine's stderr."""

import asyncio
import io
import logging
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loops import on_a_loop
from tests.observe.log_lines import (
    logging_is_put_back,  # noqa: F401 - pytest finds the fixture by its name
    only_line,
    to,
)
from tests.receiver import Receiver
from worker.config.settings import Settings
from worker.observe import log_lines as logs
from worker.observe.metrics import Metrics
from worker.server.front import pool_manager as pool
from worker.server.front.link import LAST_WORDS_BYTES, StderrTail
from worker.server.front.state import Front
from worker.wire.load import Warned


class BrokenPipe(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("name", ["uvicorn.error", "huggingface_hub.file_download"])
def test_library_lines_come_in_the_same_form_from_warning_on(name: str) -> None:
    stream = io.StringIO()
    to(stream)
    logging.getLogger(name).info("hidden")
    logging.getLogger(name).warning("half of %d", 3)
    line = only_line(stream)
    assert (line["event"], line["level"], line["logger"]) == ("half of 3", "warning", name)
    assert line["worker_id"] == "worker-1"


def test_a_librarys_own_handler_and_level_do_not_get_around_us(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("a_library")
    library.addHandler(logging.StreamHandler(sys.stderr))
    library.setLevel(logging.DEBUG)
    stream = io.StringIO()
    to(stream)
    library.info("hidden")
    library.error("shown")
    assert only_line(stream)["event"] == "shown"
    assert capsys.readouterr().err == ""


def test_odd_levels_and_wrong_arguments_of_a_library_are_logged_all_the_same() -> None:
    stream = io.StringIO()
    to(stream)
    logging.getLogger("lib").log(35, "between %s")
    logging.getLogger("lib").log(99, "above")
    logging.getLogger("lib").warning("%d items", "three")
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("warning", "between %s"), ("critical", "above"), ("warning", "%d items"),
    ]  # fmt: skip


@pytest.mark.process
def test_each_callback_retry_is_one_warning_and_shows_no_secret() -> None:
    stream = io.StringIO()
    to(stream)
    with Receiver("500,200") as receiver:
        url = receiver.url.replace("//", "//user:pass-w0rd@") + "?key=s3cret"
        asyncio.run(pool.announce(url, b"{}", token="s3cret"))
    line = only_line(stream)
    assert (line["event"], line["level"], line["code"], line["attempt"]) == ("error", "warning", "CALLBACK_FAILED", 1)
    assert "500 Internal Server Error" in line["message"]
    assert line["retry_in_s"] > 0
    assert "s3cret" not in stream.getvalue()
    assert "pass-w0rd" not in stream.getvalue()


def test_a_closed_or_broken_stream_never_raises_into_the_caller() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, BrokenPipe()):
        for log_format in ("json", "pretty", None):
            to(stream, log_format).error("error", message="x")
            logging.getLogger("uvicorn.error").error("x")


def test_a_missing_stderr_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    logs.configure(None, "worker-1")
    logs.get_logger().error("error", path=Path("x"))


def fed(*chunks: bytes) -> tuple[list[str], str]:
    tail = StderrTail()
    return [line for chunk in chunks for line in tail.feed(chunk)], tail.last_words


def test_stderr_is_cut_into_lines_and_the_last_lines_are_kept_as_one() -> None:
    lines, last_words = fed(b"load: a\r\n\nggml_abort: b\n", b"half")
    assert lines == ["load: a", "ggml_abort: b"]
    assert last_words == "load: a | ggml_abort: b | half"


noise = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"\n", b"\r", b"\x1b[0m", "é".encode(), b"\xff", b"x" * 3000])
)


@pytest.mark.long
@given(st.lists(noise.map(lambda part: part if isinstance(part, bytes) else b"".join(part)), max_size=8))
def test_any_chunking_of_stderr_gives_the_same_printable_lines(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert fed(*chunks) == fed(whole) == fed(*(bytes([byte]) for byte in whole))
    lines, last_words = fed(whole)
    assert all(line.isprintable() and line for line in [*lines, last_words or "-"])


@pytest.mark.parametrize(
    ("heard", "level"),
    [
        ("llama.cpp warning: find_slot: no room", "warning"),
        ("llama.cpp error: no memory", "warning"),
        ("llama.cpp: more cells than the model was trained on", "debug"),
        ("Traceback (most recent call last):", "debug"),
        (Warned(text="the cells are not kept"), "warning"),
    ],
)
@on_a_loop
async def test_warnings_and_errors_are_for_operators_and_other_lines_for_developers(
    heard: str | Warned, level: str
) -> None:
    stream = io.StringIO()
    logs.configure("json", "worker-1", stream, level="debug")
    front = Front(Settings(model="m.gguf"), Metrics("worker-1"))
    if isinstance(heard, str):
        front.on_engine_line(heard)
    else:
        front.on_report(heard)
    told = only_line(stream)
    assert (told["event"], told["level"]) == ("engine", level)
    assert told["line"] == (heard if isinstance(heard, str) else heard.text)


def test_the_last_4_kib_are_kept_and_no_half_character() -> None:
    _, last_words = fed("é".encode() * 3000 + b"!")
    assert last_words == "é" * 2047 + "!"


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    lines, _ = fed(*[b"x" * 1000] * 10)
    assert [len(line) for line in lines] == [LAST_WORDS_BYTES] * 2
