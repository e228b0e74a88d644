"""The set-up of the log: where its lines go, JSON off a terminal and readable on one, other libraries' among them."""

import contextlib
import logging
import sys
import threading
from functools import partial
from typing import TextIO

import stamina
import structlog
from stamina.instrumentation import RetryDetails
from structlog.dev import ConsoleRenderer
from structlog.typing import EventDict, WrappedLogger

from worker.errors import WorkerError
from worker.observe.log_lines import Level, escape, fields, get_logger, json_line
from worker.observe.log_writer import LogWriter
from worker.observe.redaction import NO_SECRETS, Secrets

_SHOWN_RAW = ("event", "logger", "logger_name", "stack", "exception")
"""The fields that structlog's console shows without repr."""


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
            partial(fields, worker_id, secrets),
            partial(_pretty_line, console) if is_pretty(log_format, stream) else json_line,
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
    with contextlib.suppress(ValueError):  # closed
        return stream is not None and stream.isatty()
    return False


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
