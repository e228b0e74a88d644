"""An engine in the terminal: what `generate` and `chat` have in common, from the flags to the text of an answer.

A front without HTTP, whose event loop may stand still between two answers: the engine waits. Never imports llama.cpp.
"""

import asyncio
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich_click as click
from rich.console import Console

from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.request import JobRequest, Request
from worker.apis.pool.execute import TEXT_ONLY, ExecuteRequest, checked_prompt
from worker.cli import read_settings, setting_options
from worker.config.combinations import report
from worker.config.engine import configure, read_chat_template
from worker.config.environment import environment
from worker.config.settings import Settings
from worker.config.spellings import unread
from worker.errors import StartupError, UsageError, WorkerError
from worker.models.downloads.catalog import load_catalog, locate
from worker.models.facts.info import ModelInfo, read_info
from worker.observe import log_setup
from worker.observe.metrics import Metrics
from worker.server.front.children import engine_environment, fetch_in_child
from worker.server.front.client import EngineClient, Observer
from worker.server.front.dispatch import Report
from worker.server.front.job import Admission, Job, in_ms, next_chunk_of
from worker.server.front.progress import LoadProgress
from worker.server.front.supervision import first_of, running
from worker.wire.jobs import JobKey, Prompt, narrow
from worker.wire.load import Loaded, Progress


def session_options(max_tokens: int) -> list[click.Option]:
    """The flags of a command with a session. `max_tokens`: the default of --max-tokens."""
    return [
        *_sampling_options(max_tokens),
        *setting_options("Model", "Device and memory", also=("max_prompt_chars",)),
    ]


def _sampling_options(max_tokens: int) -> list[click.Option]:
    """The flags of a request. The ranges are those of its fields' JSON types; the rules of /execute check the rest."""
    u32, number = click.IntRange(0, 2**32 - 1), click.FLOAT
    rows: dict[str, tuple[click.ParamType[Any], float, str]] = {
        "--max-tokens": (u32, max_tokens, "Generate at most N tokens."),
        "--temperature": (
            number,
            0.8,
            "Draw more evenly above 1 and less evenly below; 0 always takes the most probable token.",
        ),
        "--top-p": (number, 0.95, "Keep the most probable tokens that together have this probability; 1 disables."),
        "--top-k": (u32, 0, "Keep the N most probable tokens; 0 disables."),
        "--min-p": (number, 0.0, "Drop tokens less probable than this fraction of the most probable one; 0 disables."),
        "--repetition-penalty": (number, 1.0, "Make tokens that have occurred less probable; 1 disables."),
    }
    seed = click.IntRange(0, 2**64 - 1)
    return [
        *(
            click.Option([flag], type=kind, default=default, show_default=True, help=text)
            for flag, (kind, default, text) in rows.items()
        ),
        click.Option(["--seed"], type=seed, help="Repeat the answer with this seed. [default random]"),
        click.Option(["--stop"], multiple=True, help="End the answer at this text; can be given up to four times."),
    ]


def settings_of(ctx: click.Context) -> Settings:
    """The settings of a command with `session_options`. Raises: UsageError."""
    return read_settings(ctx, default_model=lambda catalog: load_catalog(catalog).default.name)


def sampling_of(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that were given as flags, as /execute would have read them. Raises: UsageError."""
    given = {str(option.name): options[str(option.name)] for option in _sampling_options(0)}
    for stop in given["stop"]:
        check_utf8("--stop", stop)
    return given | {name: narrow(value) for name, value in given.items() if isinstance(value, float)}


def check_utf8(what: str, text: str) -> None:
    """Raises: UsageError for text that was not UTF-8, which has lone surrogates."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(f"{what} is not UTF-8")


def opened(request: ExecuteRequest, settings: Settings) -> "Session":
    """A session for a first request. Its log is on, and what no setting reads is logged.

    Raises: UsageError for a request that no engine need see, and for a chat template that cannot be read.
    """
    session = Session(settings)
    try:
        session.prompt_of(request)
    except FieldsRefused as refused:
        raise UsageError(str(refused)) from None
    log_setup.configure("pretty", settings.worker_id, level="warning")
    report(unread(environment()))
    return session


class NotAnsweredError(WorkerError):
    """The engine would not, or could not, answer: one line, exit 1."""


class Session(Observer):
    """Call `start` once; then `answer`, one at a time, until `close`. Made where settings may still be refused.

    As the engine's observer it shows a waiting person what the engine does.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises: UsageError for a chat template that cannot be read."""
        self._settings = settings
        self._chat_template = read_chat_template(settings)
        self._n_jobs = 0
        self._console = Console(stderr=True)
        self._progress = LoadProgress("pretty")
        self._fatal: asyncio.Future[StartupError] | None = None
        self._client: EngineClient | None = None
        self._facts: Loaded | None = None

    async def start(self) -> None:
        """Fetch the model where that is needed, and load it. Raises: StartupError."""
        self._fatal = asyncio.get_running_loop().create_future()
        with unwinding_by_sigterm():
            info = await self._model(self._settings.model or "")
            draft = self._settings.draft_model
            draft_path = (await self._model(draft)).path if draft is not None else None
            self._client = EngineClient(
                configure(self._settings, info.path, self._chat_template, draft_path),
                self,
                environment=engine_environment(),
                watchdog_s=self._settings.watchdog_sec,
                model_bytes=info.file_bytes,
            )
            self._facts = await self._client.start()

    async def _model(self, reference: str) -> ModelInfo:
        located = locate(reference, self._settings.models_dir, load_catalog(self._settings.catalog))
        return read_info(located.path if located.is_present else await fetch_in_child(self._settings, reference))

    def check_template(self) -> None:
        """Raises: NotAnsweredError where no conversation can be answered, before one has been begun."""
        assert self._facts is not None
        if self._facts.model.chat_template is None:
            raise NotAnsweredError("this model has no chat template: give one with --chat-template FILE")

    async def close(self) -> None:
        """End the engine. Idempotent, also after a start that failed."""
        self.load_ended()
        if self._client is not None:
            await self._client.close()

    def prompt_of(self, request: ExecuteRequest) -> Prompt:
        """Return what the model is to read. Raises: FieldsRefused as /execute would, before any engine has seen it."""
        most, most_chars = self._settings.execute_tokens_out, self._settings.max_prompt_chars
        return checked_prompt(request, most, None, max_prompt_chars=most_chars)

    async def answer(self, request: ExecuteRequest, write: Callable[[bytes], None]) -> Job:
        """Write the text as it comes; the job, which has ended, knows the figures. When this is cancelled the engine
        forgets the job.

        Raises: FieldsRefused; NotAnsweredError; StartupError when there will be no engine any more; what `write`
        raises.
        """
        assert self._fatal is not None
        prompt = self.prompt_of(request)
        with unwinding_by_sigterm():
            async with running(self._stream(request, prompt, write)) as answering:
                await first_of(answering, self._fatal)
                if self._fatal.done():
                    raise self._fatal.result()
                return answering.result()

    async def _stream(self, request: ExecuteRequest, prompt: Prompt, write: Callable[[bytes], None]) -> Job:
        assert self._client is not None
        assert self._facts is not None
        self._n_jobs += 1
        admission = Admission(
            correlation_id="",
            arrived_s=time.monotonic(),
            expires_s=math.inf,
            model=self._facts.name,
            vram_bytes=0,
            metrics=Metrics("terminal"),
        )
        asked = Request(prompts=(prompt,), params=request)
        one = JobRequest(job_id=request.job_id, asked=asked, prompt=prompt, dialect=TEXT_ONLY)
        job = Job(JobKey(self._n_jobs), one, admission, self._client.jobs.release)
        self._client.jobs.submit(job)
        try:
            while text := await next_chunk_of([job]):
                write(text)
        finally:
            job.fail("CANCELLED", "the answer has no reader")  # which changes nothing once it has ended
        if job.refusal is not None:
            raise NotAnsweredError(str(job.refusal))
        if job.failure is not None:
            raise NotAnsweredError(f"{job.failure}: {job.failure_message}")
        return job

    def on_report(self, report: Report) -> None:
        if isinstance(report, Progress) and self._console.is_terminal:
            self._progress.show(report.percent)

    def load_ended(self) -> None:
        self._progress.close()

    def on_restarting(self, cause: str, last_words: str) -> None:
        self._console.print(f"the engine was restarted: {cause} {last_words}", style="yellow")

    def on_fatal(self, error: StartupError) -> None:
        assert self._fatal is not None
        if not self._fatal.done():
            self._fatal.set_result(error)


@contextmanager
def unwinding_by_sigterm() -> Iterator[None]:
    """Have SIGTERM cancel the current task here, and leave with the exit code that `_unwind` of __main__ gives.

    That handler raises, which is right while no event loop runs. Where a loop calls back, it takes what is raised for
    the failure of a connection, and the engine at its other end for one that has crashed.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    outside, is_asked = signal.getsignal(signal.SIGTERM), asyncio.Event()

    def ask() -> None:
        is_asked.set()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, ask)
    try:
        yield
    except asyncio.CancelledError:
        if is_asked.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, outside)


def write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def summary(job: Job) -> str:
    """Describe in one line how an answer was made."""
    # The time is from the first token to the last: one interval less than tokens.
    decode_ms = in_ms(job.decode_time_s)
    rate = f", {1000 * (job.tokens_sampled - 1) / decode_ms:.1f} tokens/s" if decode_ms else ""
    return f"[{job.tokens_sampled} tokens{rate}, seed {job.frame.sampling.drawn_seed}]"
