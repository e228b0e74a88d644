"""The shared parts of tests of log lines: a logger that writes to a stream, and the process's logging put back
afterwards.
"""

import io
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import stamina
import structlog

from worker.observe.log_lines import Log, get_logger
from worker.observe.log_setup import configure


@pytest.fixture(autouse=True)
def logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    stamina.instrumentation.set_on_retry_hooks(None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def to(stream: io.StringIO, log_format: str | None = "json") -> Log:
    configure(log_format, "worker-1", stream)
    return get_logger()


def only_line(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    decoded = msgspec.json.decode(line)
    assert isinstance(decoded, dict)
    return decoded


def raised(error: Exception) -> Exception:
    """The same exception with a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught
