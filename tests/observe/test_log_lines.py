"""Log lines: always one line, always decodable, never a secret (docs/protocol.md#metrics-and-logs); those of other
libraries and of the engine's stderr too, whatever becomes of ours.
"""

import io
import logging
import sys
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from tests.loops import on_a_loop
from tests.observe.log_lines import (
    Terminal,
    logging_is_put_back,  # noqa: F401 - pytest finds the fixture by its name
    only_line,
    raised,
    to,
)
from tests.receiver import Receiver
from worker.config.settings import Settings
from worker.observe.log_lines import Level, escape, get_logger
from worker.observe.log_setup import configure
from worker.observe.metrics import Metrics
from worker.observe.redaction import MASK
from worker.server.front import pool_manager as pool
from worker.server.front.children import LAST_WORDS_BYTES, StderrTail
from worker.server.front.state import Front
from worker.wire.load import Warned


@pytest.fixture
def stream() -> io.StringIO:
    """It returns what is logged, as JSON."""
    stream = io.StringIO()
    to(stream)
    return stream


def test_a_json_line_begins_with_time_level_event_and_worker(stream: io.StringIO) -> None:
    get_logger().info("execute_end", tokens_out=3, tokens_per_sec=1.5, device=None, stop=["a"])
    line = only_line(stream)
    assert list(line)[:4] == ["timestamp", "level", "event", "worker_id"]
    assert (line["level"], line["event"], line["worker_id"]) == ("info", "execute_end", "worker-1")
    assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)
    assert (line["tokens_out"], line["tokens_per_sec"], line["device"], line["stop"]) == (3, 1.5, None, ["a"])


def test_bound_context_is_on_every_line_also_on_those_of_libraries(stream: io.StringIO) -> None:
    log = get_logger()
    structlog.contextvars.bind_contextvars(correlation_id="c-1", job_id="j-1")
    log.info("execute_start")
    logging.getLogger("uvicorn.error").warning("slow")
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [(line["correlation_id"], line["job_id"], line["worker_id"]) for line in lines] == [
        ("c-1", "j-1", "worker-1")
    ] * 2


@pytest.mark.parametrize(
    ("log_format", "stream", "is_json", "has_colors"),
    [
        (None, io.StringIO(), True, False),
        (None, Terminal(), False, True),
        ("json", Terminal(), True, False),
        ("pretty", io.StringIO(), False, False),
    ],
)
def test_json_off_a_terminal_pretty_on_one_and_colours_only_there(
    log_format: str | None, stream: io.StringIO, is_json: bool, has_colors: bool
) -> None:
    to(stream, log_format).warning("ready", url="http://x")
    assert stream.getvalue().startswith("{") is is_json
    assert ("\x1b[" in stream.getvalue()) is has_colors


@pytest.mark.parametrize(("level", "n_lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_stay_out(level: Level, n_lines: int) -> None:
    stream = io.StringIO()
    configure("json", "worker-1", stream, level=level)
    for each in ("debug", "info", "warning", "error"):
        getattr(get_logger(), each)("ready")
    assert len(stream.getvalue().splitlines()) == n_lines


def test_without_a_stream_lines_go_to_stderr_and_nothing_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "worker-1")
    get_logger().info("startup")
    shown = capsys.readouterr()
    assert '"startup"' in shown.err
    assert shown.out == ""


texts = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(
    ["a\nb", "\x1b[2J", "\x9b31m", "a b\r\n", "\u202eevil", "\u2028", "\x7f", "\udc80", "{}", "%s", "\U000e0001"]
)


@given(value=texts, key=texts.filter(lambda key: key not in ("event", "logger", "level")))
def test_any_field_is_one_json_line_of_printable_characters_with_the_same_value(value: str, key: str) -> None:
    stream = io.StringIO()
    to(stream).info("ready", **{"note": value, key: value, "nested": {"a": [value]}})
    line = only_line(stream)
    assert stream.getvalue().removesuffix("\n").isprintable()
    if not any("\ud800" <= c <= "\udfff" for c in value + key):
        assert line["note"] == value
        assert line["nested"] == {"a": [value]}


@given(value=texts)
@pytest.mark.parametrize("key", ["note", "logger", "logger_name", "worker_id", "timestamp", "level", "nested"])
def test_any_field_is_one_printable_line_in_the_pretty_form(key: str, value: str) -> None:
    stream = io.StringIO()
    to(stream, "pretty").info("ready", **{key: [value] if key == "nested" else value})
    assert stream.getvalue().removesuffix("\n").isprintable()


@given(text=texts)
@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_any_exception_text_event_or_trace_field_stays_printable(log_format: str, text: str) -> None:
    stream = io.StringIO()
    log = to(stream, log_format)
    log.error("error", exc_info=raised(ValueError(text)))
    log.error("error", exception=text, stack=text, traceback=text)
    logging.getLogger("uvicorn.error").error("%s", text)
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_forged_line_in_an_exception_cannot_begin_a_line() -> None:
    for log_format in ("json", "pretty"):
        stream = io.StringIO()
        forged = "x\n2026-01-01T00:00:00Z [info] shutdown"
        to(stream, log_format).error("error", exc_info=raised(ValueError(forged)))
        assert not any(line.startswith("2026-01-01") for line in stream.getvalue().splitlines())


@given(st.text(st.characters(codec=None)))
def test_escape_gives_printable_text_and_leaves_printable_text_alone(text: str) -> None:
    assert escape(text).isprintable()
    assert escape(escape(text)) == escape(text)


def test_an_exception_is_reported_with_its_cause_and_frames_but_without_local_values(stream: io.StringIO) -> None:
    prompt = "a confidential prompt"
    try:
        try:
            raise KeyError(len(prompt))
        except KeyError as cause:
            raise ValueError("bad") from cause
    except ValueError as error:
        get_logger().error("error", code="INTERNAL", exc_info=error)
    trace = only_line(stream)["traceback"]
    assert trace[-1] == "ValueError: bad"
    assert f"KeyError: {len(prompt)}" in trace
    assert any("test_log_lines.py" in line for line in trace)
    assert prompt not in stream.getvalue()
    assert only_line(stream)["level"] == "error"


def test_every_member_of_an_exception_group_is_reported(stream: io.StringIO) -> None:
    group = ExceptionGroup("tasks", [ValueError("one"), KeyError("two")])
    get_logger().error("error", exc_info=group)
    assert {"ValueError: one", "KeyError: 'two'"} <= set(only_line(stream)["traceback"])


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_a_secret_is_masked_wherever_it_stands_in_a_line(log_format: str) -> None:
    stream = io.StringIO()
    text = "Authorization: Bearer s3cret"
    log = to(stream, log_format)
    structlog.contextvars.bind_contextvars(api_key="s3cret")
    log.error("error", message=text, headers={"authorization": "s3cret"}, exc_info=raised(ValueError(text)))
    logging.getLogger("httpx2").warning(text, exc_info=raised(ValueError(text)))
    assert "s3cret" not in stream.getvalue()
    assert stream.getvalue().count(MASK) == 7


class BrokenPipe(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("name", ["uvicorn.error", "huggingface_hub.file_download"])
def test_library_lines_come_in_the_same_form_from_warning_on(stream: io.StringIO, name: str) -> None:
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
@on_a_loop
async def test_each_callback_retry_is_one_warning_and_shows_no_secret(stream: io.StringIO) -> None:
    with Receiver("500,200") as receiver:
        url = receiver.url.replace("//", "//user:pass-w0rd@") + "?key=s3cret"
        await pool.announce(url, b"{}", token="s3cret")
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
    configure(None, "worker-1")
    get_logger().error("error", path=Path("x"))


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
    configure("json", "worker-1", stream, level="debug")
    front = Front(Settings(model="m.gguf"), Metrics("worker-1"))
    if isinstance(heard, str):
        front.on_engine_line(heard)
    else:
        front.on_report(heard)
    told = only_line(stream)
    assert (told["event"], told["level"]) == ("engine", level)
    assert told["line"] == (heard if isinstance(heard, str) else heard.text)


def test_the_last_4_kib_are_kept_and_no_half_character_also_of_a_line_without_an_end() -> None:
    _, last_words = fed("é".encode() * 3000 + b"!")
    assert last_words == "é" * 2047 + "!"
    lines, _ = fed(*[b"x" * 1000] * 10)
    assert [len(line) for line in lines] == [LAST_WORDS_BYTES] * 2
