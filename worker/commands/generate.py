"""`llorch-worker generate "prompt"`: one prompt answered in the terminal, by the same engine that `serve` uses.

The text goes to stdout as it is made, and how it ended to stderr.
"""

import codecs
import sys
from typing import Any

import rich_click as click
import uvloop

from worker.apis.pool.execute import ExecuteRequest
from worker.commands.session import (
    Session,
    check_utf8,
    opened,
    sampling_of,
    session_options,
    settings_of,
    summary,
    write,
)
from worker.config.settings import Settings
from worker.errors import UsageError

_STDIN = "-"
_MAX_TOKENS = 256


@click.command("generate")
@click.argument("prompt")
@click.option("--chat", is_flag=True, help="Apply the model's chat template to PROMPT, as a question.")
@click.option("--system", help="Put this system message before the question, with --chat.")
@click.pass_context
def generate(ctx: click.Context, /, prompt: str, *, chat: bool, system: str | None, **options: Any) -> None:
    """Answer PROMPT in the terminal.

    The text goes to stdout as it is generated. PROMPT is raw model input without a chat template, unless --chat says
    that it is a question. If PROMPT is -, it is read from stdin, with its line ends.
    Without --model, the catalogue's default is used and fetched the first time.
    """
    settings = settings_of(ctx)
    if system is not None and not chat:
        raise UsageError("--system needs --chat: a raw prompt has no place for it")
    fields = sampling_of(options)
    asked = _read_stdin(settings) if prompt == _STDIN else prompt
    check_utf8("the prompt", asked)
    if chat:
        check_utf8("--system", system or "")
        begin = [] if system is None else [{"role": "system", "content": system}]
        fields["messages"] = [*begin, {"role": "user", "content": asked}]
    else:
        fields["prompt"] = asked
    request = ExecuteRequest(job_id="generate", **fields)
    uvloop.run(_answer(opened(request, settings), request))


generate.params.extend(session_options(_MAX_TOKENS))


def _read_stdin(settings: Settings) -> str:
    """All of stdin, or as much as shows that it is too long. Raises: UsageError."""
    max_bytes = 4 * (settings.max_prompt_chars + 1)
    data = sys.stdin.buffer.read(max_bytes)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < max_bytes)
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on stdin is not UTF-8: byte {error.start} is not a character") from error


async def _answer(session: Session, request: ExecuteRequest) -> None:
    """Ctrl-C cancels this coroutine, and closing the session ends the engine."""
    try:
        await session.start()
        job = await session.answer(request, write)
    finally:
        await session.close()
    click.echo(f"\n{summary(job)}", err=True)
