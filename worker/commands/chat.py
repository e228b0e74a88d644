"""`llorch-worker chat`: a conversation with the model in the terminal, by the same engine that `serve` uses.

While it waits for a question the event loop stands still, so that the terminal's own line editing works and Ctrl-C
means what it means there.
"""

import asyncio
import contextlib
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import rich_click as click
import uvloop
from click.core import ParameterSource

from worker.apis.core.bodies import FieldsRefused
from worker.apis.pool.execute import ExecuteRequest
from worker.cli import CommandElsewhere
from worker.commands.session import (
    NotAnsweredError,
    Session,
    check_utf8,
    opened,
    sampling_of,
    session_options,
    settings_of,
    summary,
    write,
)
from worker.config.option import flag_name
from worker.errors import UsageError

_MAX_TOKENS = 1024
_PROMPT, _MORE = "> ", ". "
_QUOTES = '"""'

_HELP = """\
A line is a question. To enter several lines, end a line with a backslash or put the text between two \"\"\".
  /system TEXT  begin conversations with this system message; without TEXT, with none
  /retry        ask the last question again
  /new, /clear  begin a new conversation; the system text stays
  /help         show this list
  /quit         leave, as Ctrl-D does
Ctrl-C stops an answer. On an empty line it leaves."""


@click.group("chat", invoke_without_command=True)
@click.option("--system", help="Begin the conversation with this system message.")
@click.pass_context
def chat(ctx: click.Context, /, *, system: str | None, **options: Any) -> None:
    """Talk with a model in the terminal.

    The worker applies the model's chat template and sends the whole conversation with each question; its prefix is
    cached. /help lists the commands.
    If stdin is not a terminal, each of its lines is a question, and only the answers go to stdout.
    Without --model, the catalogue's default is used and fetched the first time.
    """
    if ctx.invoked_subcommand is not None:
        for name in ctx.params:
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                command = ctx.invoked_subcommand
                raise UsageError(f"{flag_name(name)} has no effect before {command}; put the options after it")
        return
    settings = settings_of(ctx)
    check_utf8("--system", system or "")
    talk = Talk(system, sampling_of(options))
    session = opened(talk.request("?"), settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(session.start())
            session.check_template()
            Terminal(runner, session, talk).run()
        finally:
            runner.run(session.close())


chat.params.extend(session_options(_MAX_TOKENS))
for _name, _line in {
    "render": "Render conversations to prompts, a JSON object a line.",
    "parse": "Read answers: content, reasoning and tool calls, a JSON object a line.",
}.items():
    # These read templates, which a process with a front does not.
    chat.add_command(CommandElsewhere(_name, f"worker.commands.chat_lines:{_name}", _line))


@dataclass(slots=True)
class Turn:
    """A question, and as much of its answer as there is."""

    question: str
    answer: str = ""


@dataclass(slots=True)
class Talk:
    """One conversation."""

    system: str | None
    sampling: dict[str, Any]
    """Fields of every request."""
    turns: list[Turn] = field(default_factory=list)

    def request(self, question: str) -> ExecuteRequest:
        """The conversation so far and a question. What has no answer is left out: templates want them in turns."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            if turn.answer:
                messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        messages.append({"role": "user", "content": question})
        return ExecuteRequest(job_id="chat", messages=messages, **self.sampling)


class Terminal:
    """The loop of questions and answers. `run` ends when the user does."""

    def __init__(self, runner: asyncio.Runner, session: Session, talk: Talk) -> None:
        self._runner = runner
        self._session = session
        self._talk = talk
        self._is_typed = sys.stdin.isatty()
        self._is_shown = sys.stdout.isatty()
        if self._is_typed:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - importing it is what gives input() its line editing

    def run(self) -> None:
        """Raises: NotAnsweredError, KeyboardInterrupt if no person is there to ask again."""
        if self._is_typed:
            _tell("/help says what can be typed here. Ctrl-D leaves.")
        while (typed := self._next()) is not None:
            command, _, rest = typed.partition(" ")
            match command:
                case "/quit" | "/exit" | "/bye":
                    return
                case "/help":
                    _tell(_HELP)
                case "/new" | "/clear":
                    self._talk.turns.clear()
                case "/system":
                    self._talk.system = rest.strip() or None
                case "/retry":
                    self._retry()
                case _ if command.startswith("/"):
                    _tell(f"unknown command {command}: /help lists the commands; a space before it makes it a question")
                case _ if typed.strip():
                    self._ask(typed)

    # ── questions ────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> str | None:
        """The next question or command, or None when there are no more."""
        was_interrupted = False
        while True:
            try:
                return self._typed()
            except EOFError:
                self._end_line()
                return None
            except KeyboardInterrupt:
                if not self._is_typed:
                    raise
                self._end_line()
                if was_interrupted or not _line_so_far():
                    return None
                was_interrupted = True

    def _typed(self) -> str:
        """One line, or several that belong together. Raises: EOFError, KeyboardInterrupt."""
        line = self._line(_PROMPT)
        if line.startswith(_QUOTES):
            lines = [line.removeprefix(_QUOTES)]
            with contextlib.suppress(EOFError):
                while not lines[-1].endswith(_QUOTES):
                    lines.append(self._line(_MORE))
            return "\n".join(lines).removesuffix(_QUOTES).strip("\n")
        with contextlib.suppress(EOFError):
            while line.endswith("\\"):
                line = line.removesuffix("\\") + "\n"
                line += self._line(_MORE)
        return line

    def _line(self, prompt: str) -> str:
        return input(prompt if self._is_typed and self._is_shown else "")

    def _end_line(self) -> None:
        """Leave the line of the prompt."""
        if self._is_typed and self._is_shown:
            print()

    # ── answers ──────────────────────────────────────────────────────────────────────────────────

    def _retry(self) -> None:
        if not self._talk.turns:
            _tell("there is no question yet")
            return
        self._ask(self._talk.turns.pop().question)

    def _ask(self, question: str) -> None:
        """Show the answer and keep it. Reports what stops or prevents it; the conversation continues."""
        turn = Turn(question)
        try:
            check_utf8("the question", question)
            request = self._talk.request(question)
            self._talk.turns.append(turn)
            job = self._runner.run(self._session.answer(request, partial(self._stream, turn)))
        except KeyboardInterrupt:
            if not self._is_typed:
                raise
            write(b"\n")
            _tell("[stopped]")
        except (UsageError, FieldsRefused, NotAnsweredError) as error:
            if not self._is_typed:
                raise
            write(b"\n" if turn.answer else b"")
            _tell(f"{error} (/new begins a new conversation)")
        else:
            write(b"\n")
            _tell(summary(job))

    def _stream(self, turn: Turn, text: bytes) -> None:
        turn.answer += text.decode()
        write(text)


def _line_so_far() -> str:
    """The text in the line when Ctrl-C came; empty also without line editing."""
    editing = sys.modules.get("readline")
    return editing.get_line_buffer() if editing is not None else ""


def _tell(line: str) -> None:
    click.echo(line, err=True)
