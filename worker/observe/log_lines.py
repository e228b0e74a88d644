"""Log lines: one per event, on stderr (docs/protocol.md#metrics-and-logs). Any thread may log."""

import traceback
from collections.abc import Callable, Iterator
from json import dumps
from typing import Literal, Protocol

import structlog
from structlog.typing import EventDict, WrappedLogger

from worker.observe.redaction import Secrets
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


class Log(Protocol):
    """structlog's bound logger, narrowed so that mypy knows the events."""

    def debug(self, event: str, **fields: object) -> None: ...
    def info(self, event: LogEvent, **fields: object) -> None: ...
    def warning(self, event: LogEvent, **fields: object) -> None: ...
    def error(self, event: LogEvent, **fields: object) -> None: ...


get_logger: Callable[[], Log] = structlog.get_logger
"""A logger; fields bound with structlog.contextvars (correlation_id, job_id) are on each of its lines."""


def escape(text: str) -> str:
    r"""The text on one line: control characters, separators, bidi marks and lone surrogates become \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def fields(worker_id: str, secrets: Secrets, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
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


def json_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Control characters beyond ASCII get JSON's own escapes too, so that a value reads back as it was."""
    text = encode_json(event).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else dumps(c)[1:-1] for c in text)
