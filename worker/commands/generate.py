"""`llorch-worker generate "prompt"`: one prompt answered in the terminal, by the same engine that `serve` uses.

A front without HTTP: it starts an engine process, streams one job's text to stdout, and says on stderr how it ended.
Never imports llama.cpp.
"""

import asyncio
import codecs
import sys
import time
from typing import Any

import rich_click as click
import uvloop
from rich.console import Console

from worker.cli import read_settings, setting_options
from worker.config.no_effect import tell
from worker.config.settings import Settings, environment
from worker.config.spellings import unread
from worker.errors import StartupError, UsageError, WorkerError
from worker.front.checked_request import checked
from worker.front.client import EngineClient, Observer, configure
from worker.front.fetch_child import fetch_in_child
from worker.front.job import Job, JobDeps
from worker.front.link import engine_environment
from worker.front.metrics import Metrics
from worker.front.progress import LoadProgress
from worker.front.supervision import first_of, running
from worker.logs import lines as logs
from worker.model.catalog import load_catalog, locate
from worker.model.info import ModelInfo, read_info
from worker.protocol.bodies import FieldsRefused
from worker.protocol.events import TEXT_ONLY
from worker.protocol.execute import ExecuteRequest, narrow
from worker.protocol.rules import violations
from worker.wire.messages import JobKey, Loaded

_LONGEST_S = 86_400.0
"""The longest life of a job here, which is no limit in practice: a terminal has Ctrl-C."""

_STDIN = "-"
_U32 = click.IntRange(0, 2**32 - 1)
"""The range of the field's JSON type; the rules of /execute check the rest."""


@click.command("generate")
@click.argument("prompt")
@click.option("--max-tokens", type=_U32, default=256, show_default=True, help="Most tokens to generate.")
@click.option("--temperature", type=float, default=0.8, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=float, default=0.95, show_default=True, help="Nucleus; 1 is off.")
@click.option("--top-k", type=_U32, default=0, show_default=True, help="Most likely tokens kept; 0 is off.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="Of the best one's; 0 is off.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="1 is off.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Repeats an answer. [default random]")
@click.option("--stop", multiple=True, help="Text that ends the answer; up to four.")
@click.pass_context
def generate(ctx: click.Context, /, prompt: str, **options: Any) -> None:
    """Answer PROMPT in the terminal.

    The text goes to stdout as it is made. PROMPT is raw model input: no chat template is applied. As - it is read from
    stdin, with its line ends.
    Without --model the catalogue's default is used, and fetched the first time.
    """
    settings = read_settings(ctx, default_model=lambda catalog: load_catalog(catalog).default.name)
    asked = {name: options[name] for name in ExecuteRequest.__struct_fields__ if name in options}
    request = _request(_read_stdin(settings) if prompt == _STDIN else prompt, asked)
    broken = violations(request, settings.max_tokens_out, vocab_size=None, max_prompt_chars=settings.max_prompt_chars)
    if broken:
        raise UsageError(str(FieldsRefused(broken)))
    logs.configure("pretty", settings.worker_id, level="warning")
    tell(unread(environment()))
    raise SystemExit(uvloop.run(_answer(settings, request)))


generate.params.extend(setting_options("Model", "Device and memory", also=("max_prompt_chars",)))


def _read_stdin(settings: Settings) -> str:
    """All of stdin, or as much as shows that it is too long. Raises: UsageError."""
    most_bytes = 4 * (settings.max_prompt_chars + 1)
    data = sys.stdin.buffer.read(most_bytes)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=len(data) < most_bytes)
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt on stdin is not UTF-8: byte {error.start} is no character") from error


def _request(prompt: str, sampling: dict[str, Any]) -> ExecuteRequest:
    """The request as /execute would have read it. Raises: UsageError for text that is not UTF-8, which has lone
    surrogates.
    """
    for what, text in (("the prompt", prompt), *(("--stop", stop) for stop in sampling["stop"])):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UsageError(f"{what} is not UTF-8")
    numbers = {name: narrow(value) for name, value in sampling.items() if isinstance(value, float)}
    return ExecuteRequest(job_id="generate", prompt=prompt, **sampling | numbers)


async def _answer(settings: Settings, request: ExecuteRequest) -> int:
    terminal = _Terminal()
    info = await _model(settings)
    client = EngineClient(
        configure(settings, info.path),
        terminal,
        environment=engine_environment(),
        watchdog_s=settings.watchdog_sec,
        model_bytes=info.file_bytes,
    )
    try:
        facts = await client.start()
        async with running(_stream(client, facts, request)) as answering:
            await first_of(answering, terminal.fatal)
            if terminal.fatal.done():
                raise terminal.fatal.result()
            return answering.result()
    finally:
        terminal.load_ended()
        await client.close()


async def _model(settings: Settings) -> ModelInfo:
    located = locate(settings.model or "", settings.models_dir, load_catalog(settings.catalog))
    return read_info(located.path if located.is_present else await fetch_in_child(settings))


async def _stream(client: EngineClient, facts: Loaded, request: ExecuteRequest) -> int:
    """Write the text as it comes; Ctrl-C cancels this coroutine, and closing the client ends the engine."""
    now_s = time.monotonic()
    complete = checked(JobKey(1), request, correlation_id="", arrived_s=now_s, expires_s=now_s + _LONGEST_S)
    deps = JobDeps(dialect=TEXT_ONLY, model=facts.name, vram_bytes=0, metrics=Metrics("generate"))
    job = Job(complete, deps, client.release)
    client.submit(job)
    while text := await job.next_chunk():
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    if job.refusal is not None:
        raise _NotAnsweredError(str(job.refusal))
    if job.failure is not None:
        raise _NotAnsweredError(f"{job.failure}: {job.failure_message}")
    # The time is from the first token to the last: one interval less than tokens.
    rate = f", {1000 * (job.tokens_sampled - 1) / job.decode_time_ms:.1f} tokens/s" if job.decode_time_ms else ""
    click.echo(f"\n[{job.tokens_sampled} tokens{rate}, seed {complete.submit.sampling.seed}]", err=True)
    return 0


class _NotAnsweredError(WorkerError):
    """The engine would not, or could not, answer: one line, exit 1."""


class _Terminal(Observer):
    """What a person who waits is told of the engine."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.fatal: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
        self._progress = LoadProgress("pretty")

    def on_progress(self, percent: int) -> None:
        if self.console.is_terminal:
            self._progress.show(percent)

    def load_ended(self) -> None:
        self._progress.close()

    def on_restarting(self, cause: str, last_words: str) -> None:
        self.console.print(f"the engine was restarted: {cause} {last_words}", style="yellow")

    def on_fatal(self, error: StartupError) -> None:
        if not self.fatal.done():
            self.fatal.set_result(error)
