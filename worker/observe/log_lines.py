"""Log lines: one per event, on stderr, JSON off a terminal and readable on one (docs/protocol.md#metrics-and-logs).

Other libraries' lines have the same form. Any thread may log; a failing stderr does no harm.
"""

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from json import dumps
from typing import Literal, Protocol, TextIO

import stamina
import structlog
from stamina.instrumentation import RetryDetails
from structlog.dev import ConsoleRenderer
from structlog.typing import EventDict, WrappedLogger

from worker.errors import WorkerError
from worker.observe.log_writer import LogWriter
from worker.observe.redaction import NO_SECRETS, Secrets
from worker.wire.encoding import encode_json

LogEvent = Literal[
    "startup",
    "listening",
    "kv_events_listening",
    "model_load_start",
    "model_load_progress",
    "model_load_complete",
    "memory_off_plan",
    "amx_left_out",
    "prefix_cache_off",
    "drafts_off",
    "prefix_cache_restored",
    "prefix_cache_dropped",
    "ready",
    "callback_sent",
    "execute_start",
    "execute_end",
    "refused",
    "access",
    "engine",
    "engine_restarted",
    "residency_changed",
    "parity_differs",
    "threads_changed",
    "no_effect",
    "log_lines_dropped",
    "error",
    "shutdown",
]
"""The events of docs/protocol.md#metrics-and-logs. Only debug lines may have other words."""

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "pretty"]

_DEEPEST_CAUSE = 8
_SHOWN_RAW = ("event", "logger", "logger_name", "stack", "exception")
"""The fields that structlog's console shows without repr."""


class Log(Protocol):
    """structlog's bound logger, narrowed so that mypy knows the events."""

    def debug(self, event: str, **fields: object) -> None: ...
    def info(self, event: LogEvent, **fields: object) -> None: ...
    def warning(self, event: LogEvent, **fields: object) -> None: ...
    def error(self, event: LogEvent, **fields: object) -> None: ...


def get_logger() -> Log:
    """A logger; fields bound with structlog.contextvars (correlation_id, job_id) are on each of its lines."""
    log: Log = structlog.get_logger()
    return log


def configure(
    log_format: str | None,
    worker_id: str,
    stream: TextIO | LogWriter | None = None,
    *,
    level: Level = "info",
    secrets: Secrets = NO_SECRETS,
) -> None:
    """Send lines from now on to `stream` (None: stderr): those from `level` on, other libraries' from WARNING on.

    `log_format` is json, pretty, or None for pretty on a terminal; colours are for terminals only. `secrets` are masked
    wherever they stand. A LogWriter's lines never wait; when it has dropped some, a line says how many.
    """
    stream = stream or sys.stderr
    sink = stream if isinstance(stream, LogWriter) else _Sink(stream)
    console = ConsoleRenderer(colors=_is_terminal(stream), sort_keys=False, repr_native_str=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            partial(_fields, worker_id, secrets),
            partial(_pretty_line, console) if is_pretty(log_format, stream) else _json_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
    )
    if isinstance(stream, LogWriter):
        stream.on_cleared = lambda n_lines: get_logger().warning("log_lines_dropped", lines=n_lines)
    # Lines of other libraries come out here and nowhere else.
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.root.handlers[:] = [_LibraryLines(logging.WARNING)]
    logging.root.setLevel(logging.WARNING)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


def is_pretty(log_format: str | None, stream: TextIO | LogWriter | None = None) -> bool:
    """True if a person reads the lines on `stream` (None: stderr)."""
    return log_format == "pretty" or (log_format is None and _is_terminal(stream or sys.stderr))


def escape(text: str) -> str:
    r"""The text on one line: control characters, separators, bidi marks and lone surrogates become \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# ── from event to line ───────────────────────────────────────────────────────────────────────────


def _fields(worker_id: str, secrets: Secrets, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The fields of a line: the fixed ones first, then the caller's, plain and without secrets."""
    error, text = event.pop("exc_info", None), secrets.redact_text
    line: EventDict = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    line["event"] = text(str(line["event"]))
    line["worker_id"] = worker_id
    line.update({text(key): secrets.redact(key, value) for key, value in event.items() if key != "worker_id"})
    if isinstance(error, BaseException):
        line["traceback"] = [text(frame) for frame in _traceback(error)]
    return line


def _traceback(error: BaseException, depth: int = 0) -> Iterator[str]:
    """Python's traceback, in which the exception's text, which may hold a user's, stays on one line."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth < _DEEPEST_CAUSE:
        yield from _traceback(cause, depth + 1)
    for frame in traceback.format_tb(error.__traceback__):
        yield from map(escape, frame.splitlines())
    yield escape(f"{type(error).__name__}: {error}")
    if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST_CAUSE:
        for member in error.exceptions:
            yield from _traceback(member, depth + 1)


def _json_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Control characters beyond ASCII get JSON's own escapes too, so that a value reads back as it was."""
    text = encode_json(event).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else dumps(c)[1:-1] for c in text)


def _pretty_line(console: ConsoleRenderer, logger: WrappedLogger, method: str, event: EventDict) -> str:
    """structlog's console line. It shows values through repr, which escapes, and a few as they are."""
    trace = event.pop("traceback", [])
    event.update({key: escape(str(event[key])) for key in _SHOWN_RAW if key in event})
    line = console(logger, method, {escape(key): value for key, value in event.items()})
    return "\n    ".join([line, *(escape(str(text)) for text in trace)])


class _Sink:
    """The end of structlog's chain: a stream that may be closed, broken or absent."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._lock = threading.RLock()

    def write(self, line: str) -> None:
        if self._stream is None:
            return
        # ValueError: closed. RuntimeError: a signal handler logs in the middle of a write.
        with self._lock, contextlib.suppress(OSError, ValueError, RuntimeError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = write


def _is_terminal(stream: TextIO | LogWriter | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


# ── other libraries ──────────────────────────────────────────────────────────────────────────────


class _LibraryLines(logging.Handler):
    """Hands a standard-library record to structlog: its text is the event, its logger's name a field."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        try:
            text = record.getMessage()
        except (TypeError, ValueError, LookupError):  # arguments that do not fit the format
            text = str(record.msg)
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().log(level, text, logger=record.name, exc_info=error)


def _log_retry(details: RetryDetails) -> None:
    """stamina's own line would show the call's arguments."""
    error = details.caused_by
    get_logger().warning(
        "error",
        code=error.code if isinstance(error, WorkerError) else type(error).__name__,
        message=str(error),
        attempt=details.retry_num,
        retry_in_s=round(details.wait_for, 2),
    )
