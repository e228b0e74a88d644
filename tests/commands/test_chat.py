"""`llorch-worker chat`: a conversation in a terminal of its own, and through pipes, with a real engine process."""

import asyncio
import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_generate import GREEDY, complaint
from tests.worker_process import PATIENCE_S, ended_by, eventually, own_environment
from worker.commands.chat import Talk, Terminal, Turn
from worker.commands.session import Session
from worker.config.settings import Settings

COMMAND = (sys.executable, "-m", "worker", "chat")
SUMMARY = r"\[\d+ tokens, [\d.]+ tokens/s, seed \d+\]"

TAKE_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A new session has no terminal until its leader takes one; Ctrl-C is a signal only then."""


def piped(*flags: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *flags], env=own_environment(), input=stdin, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


class TypedAt:
    """A program in a terminal: what is typed, and all that the screen has shown."""

    def __init__(self, *flags: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_THE_TERMINAL, *COMMAND, *flags],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env=own_environment() | {"TERM": "dumb", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        os.close(theirs)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, pattern: str) -> str:
        """Return the screen up to the end of the pattern's next match; the rest comes next time."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.screen)) is None:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"{pattern} did not come: {self.screen!r}"
            self.screen += self._read()
        shown, self.screen = self.screen[: found.end()], self.screen[found.end() :]
        return shown

    def _read(self) -> str:
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # Linux's word for the end: nobody holds the other side
            data = b""
        assert data, f"it has left: {self.screen!r}"
        return data.decode(errors="replace")

    def is_asleep(self) -> bool:
        """Return whether the program waits; source: proc(5), the state behind the name in /proc/PID/stat."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._ours)


@contextmanager
def typed_at(*flags: str) -> Iterator[TypedAt]:
    terminal = TypedAt(*flags)
    try:
        terminal.until("> ")
        yield terminal
    finally:
        terminal.close()


# ── at a terminal ────────────────────────────────────────────────────────────────────────────────

pytestmark = pytest.mark.process


@pytest.mark.model
def test_a_conversation_at_a_terminal(default_model: Path) -> None:
    """An answer streams; Ctrl-C stops one and not the program; commands; Ctrl-D leaves with 0."""
    with typed_at("--model", str(default_model), *GREEDY) as terminal:
        terminal.type("What is 2+2?\r")
        assert "is 4." in terminal.until(SUMMARY)
        terminal.until("> ")
        terminal.type("Write a long story about the sea, in many chapters.\r")
        terminal.until(r"chapters\.\s+(\w+\W+){5}")
        terminal.type("\x03")
        terminal.until(r"\[stopped\]\s+> ")
        terminal.type("/nonsense\r")
        terminal.until("unknown command /nonsense")
        terminal.type("/new\r")
        terminal.type("Repeat this word: banana\r")
        plain = terminal.until(SUMMARY)
        assert "Banana." in plain
        terminal.type("/retry\r")
        assert "Banana." in terminal.until(SUMMARY)
        terminal.type("/system You are a pirate.\r")
        terminal.type("/retry\r")
        assert "Banana." not in terminal.until(SUMMARY)
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(PATIENCE_S) == 0


@pytest.mark.model
def test_ctrl_c_at_the_prompt_gives_up_a_line_and_leaves_from_an_empty_one(any_model: Path) -> None:
    with typed_at("--model", str(any_model), *GREEDY) as terminal:
        terminal.type("half a quest")
        terminal.until("half a quest")
        # Python's readline would not see a signal that comes while it still reads the last letter.
        eventually(terminal.is_asleep)
        terminal.type("\x03")
        terminal.until("> ")
        assert ended_by(partial(terminal.type, "\x03"), terminal.process) == 0


# ── through pipes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_each_line_of_a_pipe_is_a_question_and_only_answers_go_to_stdout(default_model: Path) -> None:
    flags = ("--model", str(default_model), *GREEDY, "--max-tokens", "16")
    both = piped(*flags, stdin="What is 2+2?\n\n/system Be brief.\nAnd 3+3?")
    assert both.returncode == 0, both.stderr
    assert re.fullmatch(rf"{SUMMARY}\n{SUMMARY}\n", both.stderr)
    assert ">" not in both.stdout
    alone = piped(*flags, stdin="What is 2+2?\n")
    assert "is 4.\n" in alone.stdout
    assert both.stdout.startswith(alone.stdout)


@pytest.mark.model
def test_what_cannot_be_answered_ends_a_pipe_with_one_line(any_model: Path) -> None:
    result = piped("--model", str(any_model), "--ctx-size", "64", stdin="word " * 100)
    assert "context is 64" in complaint(result, 1)


# ── what is typed, what is sent ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("a\nb", ["a", "b"]),
        ("a\\\nb\nc", ["a\nb", "c"]),
        ("a\\\n", ["a\n"]),
        ('"""a\n"b"\n\nc"""\nd', ['a\n"b"\n\nc', "d"]),
        ('"""\na\n"""\n', ["a"]),
        ('"""a', ["a"]),
        ("", []),
    ],
)
def test_lines_that_belong_together_are_one_question(
    typed: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with asyncio.Runner() as runner:
        terminal = Terminal(runner, Session(Settings()), Talk(None, {}))
        assert list(iter(terminal._next, None)) == found


def messages(talk: Talk) -> Any:
    return [(message["role"], message["content"]) for message in talk.request("new").messages]


def test_a_question_is_sent_with_what_was_said_before_it_in_turns() -> None:
    talk = Talk("be brief", {"max_tokens": 3}, [Turn("a", "A"), Turn("stopped"), Turn("b", "B")])
    said = [("user", "a"), ("assistant", "A"), ("user", "b"), ("assistant", "B"), ("user", "new")]
    assert messages(talk) == [("system", "be brief"), *said]
    assert talk.request("new").max_tokens == 3
    talk.system = None
    assert messages(talk) == said
