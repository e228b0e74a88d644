"""The hint on a terminal: the command that a ready worker shows is answered, with and without a token."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from client.child import COMMAND, end
from tests.worker_process import own_environment

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = "a-token-of-the-test"


@contextmanager
def shown(*flags: str, token: str = "") -> Iterator[list[str]]:
    """The lines of the hint, down to the empty line behind it; the worker runs meanwhile."""
    environment = own_environment() | ({"LLORCH_API_TOKEN": token} if token else {})
    command = [*COMMAND, "--port", "0", "--log-format", "pretty", "--ctx-size", "1024", *flags]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as worker:
        try:
            assert worker.stderr is not None
            lines = (line.decode().strip() for line in worker.stderr)
            assert "Try it:" in lines
            yield list(takewhile(bool, lines))
        finally:
            end(worker)


def answer_of(line: str, token: str = "") -> str:
    """The output of the pasted line, which fails for a refusal."""
    command = ["/bin/sh", "-c", line.replace("curl ", "curl -sSf ", 1)]
    environment = own_environment() | {"LLORCH_API_TOKEN": token}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("token", ["", TOKEN], ids=["open", "token"])
def test_the_line_can_be_pasted_and_the_page_opened(any_model: Path, token: str) -> None:
    with shown("--model", str(any_model), token=token) as (line, page):
        assert '"choices"' in answer_of(line, token)
        assert TOKEN not in line
        assert "<html" in answer_of(f"curl {page.removeprefix('or open ').removesuffix(' in a browser')}")


def test_no_page_is_named_where_there_is_none(any_model: Path) -> None:
    with shown("--model", str(any_model), "--no-page") as lines:
        assert len(lines) == 1
