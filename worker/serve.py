"""The front process, from settings to exit code: resolve, bind, load, open, call back, serve, drain.

Composition root of the front; docs/protocol.md#start-up-and-callback gives the order. Never imports llama.cpp.
"""

import asyncio
import gc
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import uvloop
from msgspec.structs import asdict

from worker.apis.core.bodies import LegacyReadyCallback, ReadyCallback
from worker.config.combinations import idle_after_load, idle_before_load, report
from worker.config.engine import configure, read_chat_template
from worker.config.environment import asks_for_traces, environment
from worker.config.settings import Settings
from worker.errors import CallbackFailed, InsufficientMemory, InternalFailure, StartupError, UsageError, WorkerError
from worker.models.downloads.catalog import Catalog, Located, load_catalog, locate
from worker.models.facts.info import ModelInfo, read_info
from worker.observe import log_setup
from worker.observe.log_lines import get_logger
from worker.observe.log_writer import LogWriter, in_background
from worker.observe.metrics import Metrics
from worker.observe.redaction import Secrets
from worker.server.front.certificate import Certificate, read_certificate
from worker.server.front.children import engine_environment, fetch_in_child, shared_memory
from worker.server.front.client import ENGINE_COMMAND, EngineClient
from worker.server.front.link import EngineLink
from worker.server.front.pool_manager import Loop, announce, is_test_mode, shown_url
from worker.server.front.progress import report_loaded
from worker.server.front.state import Front
from worker.server.front.supervision import ended, first_of, running, supervised
from worker.server.saved.directory import prepare_directory
from worker.server.web.server import allow_open_files, bound_socket, served, url_of
from worker.wire.encoding import encode_json

if TYPE_CHECKING:
    from worker.observe.traces import Traces  # an extra

log = get_logger()

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

FAREWELL_S = 5.0
"""The time that clients have to read their last event, once the last job has its own."""

_SHOWN = (
    "other users can read a secret among the flags in the list of processes: "
    "give the token as LLORCH_API_TOKEN, and no password in a URL"
)


class Stopped(Exception):
    """A signal or /shutdown came before the worker was ready. Nothing was promised, so it exits with 0."""


def run(
    settings: Settings,
    *,
    ignored_flags: tuple[str, ...] = (),
    unread: Sequence[tuple[str, str]] = (),
    shows_secrets: bool = False,
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> int:
    """Serve until a signal or /shutdown. Returns the exit code: 0 after a graceful end, 1 after an error.

    `unread`: environment variables that were meant for this worker and are no settings, each with its explanation.
    `shows_secrets`: other users can read a secret in the list of processes.
    Raises: UsageError for what settings name and is not fit to be used, before anything is logged.
    """
    if settings.kv_events is not None and find_spec("zmq") is None:
        raise UsageError("--kv-events needs pyzmq: pip install pyzmq, or pip install -e '.[kv-events]' in a checkout")
    catalog, chat_template = load_catalog(settings.catalog), read_chat_template(settings)
    if settings.prefix_cache_dir is not None:
        prepare_directory(settings.prefix_cache_dir)
    with in_background(sys.stderr) as writer:
        log_setup.configure(
            settings.log_format,
            settings.worker_id,
            writer,
            level=settings.log_level,
            secrets=Secrets(settings.api_key, environment().get("HF_TOKEN")),
        )
        traces = _traces(settings)
        log.info("startup", model_ref=settings.reported_model_ref, device=settings.device)
        if ignored_flags:
            log.warning("startup", ignored_flags=list(ignored_flags))
        if shows_secrets:
            log.warning("startup", message=_SHOWN)
        report([*unread, *idle_before_load(settings)])
        try:
            allow_open_files()
            service = Service(settings, catalog, chat_template, engine_command, writer, traces)
            return uvloop.run(service.run(), loop_factory=Loop)
        except StartupError as error:
            _report(error, settings, None)
        except (OSError, MemoryError) as error:
            refused = f"the operating system refused a resource: {str(error) or 'no memory'}"
            _report(StartupError(f"{refused}; check `ulimit -a` and free memory"), settings, None)
        finally:
            if traces is not None:
                traces.close()
        log.info("shutdown", exit_code=1)
        return 1


def _traces(settings: Settings) -> "Traces | None":
    """Return the exporter of spans, if the environment names a collector. Raises: UsageError."""
    if (asked_by := asks_for_traces(environment())) is None:
        return None
    try:
        from worker.observe.traces import Traces  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise UsageError(
            f"{asked_by} asks for traces, and opentelemetry-sdk is not installed: pip install -e '.[otel]' in a "
            "checkout, or unset the variable"
        ) from error
    return Traces(settings.worker_id)


class Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second ends it, more change nothing."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # Not loop.add_signal_handler: it puts the default back when the loop closes, and a late signal would kill us.
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def ignore_more(self) -> None:
        """The exit code is decided. Python restores the defaults as it ends; a late signal would replace the code."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@dataclass(slots=True)
class Service:
    """One worker's life, which `_live` shows from top to bottom."""

    _settings: Settings
    _catalog: Catalog
    _chat_template: str | None
    _engine_command: Sequence[str]
    _writer: LogWriter
    _traces: "Traces | None"
    _signals: Signals = field(init=False)
    _model_path: Path | None = None

    async def run(self) -> int:
        self._signals = Signals()
        try:
            code = await self._live()
        except Stopped:
            code = 0
        except Exception as error:  # the top of serve: the process ends, and says why
            if isinstance(error, WorkerError) and not isinstance(error, StartupError):
                raise
            reason = error if isinstance(error, StartupError) else InternalFailure("the worker", error)
            _report(reason, self._settings, self._model_path)
            code = 1
        self._signals.ignore_more()
        log.info("shutdown", exit_code=code)
        return code

    async def _live(self) -> int:
        located = self._located(self._settings.model or "")
        self._model_path = located.path
        info, draft = self._info_of(located), None
        if self._settings.draft_model is not None:
            draft = self._info_of(self._located(self._settings.draft_model))
        report = self._settings.parity_report
        certificate = read_certificate(report) if report is not None else None
        metrics = Metrics(self._settings.worker_id, n_log_lines_dropped=lambda: self._writer.n_dropped)
        front = Front(self._settings, metrics, self._traces)
        with bound_socket(self._settings.host, self._settings.port) as sock:
            host, port = sock.getsockname()[:2]
            log.info("listening", host=host, port=port, url=url_of(sock))
            async with (
                self._kv_events(front),
                served(front, sock),
                self._engine(front, info, draft, certificate) as client,
            ):
                front.open(client)
                # What is here now stays: the collector would walk all of it now and then, and every stream would wait.
                gc.freeze()
                _report_ready(front, sock, self._settings)
                return await self._serve(front, port)

    def _located(self, reference: str) -> Located:
        """Raises: ModelNotFound."""
        return locate(reference, self._settings.models_dir, self._catalog)

    def _info_of(self, located: Located) -> ModelInfo | None:
        """Return the facts of a file that is here. Raises: BadModelFile."""
        return read_info(located.path) if located.is_present else None

    async def _fetched(self, front: Front, reference: str) -> ModelInfo:
        return read_info(await self._unless_stopped(front, fetch_in_child(self._settings, reference)))

    @asynccontextmanager
    async def _engine(
        self, front: Front, info: ModelInfo | None, draft: ModelInfo | None, certificate: Certificate | None
    ) -> AsyncIterator[EngineClient]:
        """An engine that has loaded the models, which are downloaded and compared with the certificate before."""
        info = info or await self._fetched(front, self._settings.model or "")
        if self._settings.draft_model is not None:
            draft = draft or await self._fetched(front, self._settings.draft_model)
        if certificate is not None:
            front.certificate = await self._unless_stopped(front, certificate.examined(info))
            if self._settings.require_parity:
                front.certificate.check_file()
        with shared_memory() as arena_fd:
            client = EngineClient(
                configure(
                    self._settings, info.path, self._chat_template, draft.path if draft else None, arena_fd=arena_fd
                ),
                front,
                environment=engine_environment(),
                watchdog_s=self._settings.watchdog_sec,
                model_bytes=info.file_bytes,
                command=self._engine_command,
                spawn=partial(EngineLink.spawn, inherited_fds=[arena_fd]),
            )
            odd = {"vocabulary": list(info.vocabulary_remarks)} if info.vocabulary_remarks else {}
            log.info("model_load_start", model_ref=self._settings.reported_model_ref, path=str(info.path), **odd)
            try:
                facts = await self._unless_stopped(front, client.start())
                front.load_ended()
                report_loaded(facts, self._settings)
                report(idle_after_load(self._settings, facts))
                yield client
            finally:
                front.load_ended()
                # A worker without an engine takes nothing more, whatever it was that ended it.
                front.drain()
                await client.close()

    @asynccontextmanager
    async def _kv_events(self, front: Front) -> AsyncIterator[None]:
        """Publish what blocks of prompts the front's engine has, where --kv-events asks for it."""
        if self._settings.kv_events is None:
            yield
            return
        from worker.server.front.kv_events import published  # noqa: PLC0415 - an optional package

        async with published(self._settings, front.on_fatal) as front.kv_events:
            yield

    async def _unless_stopped(self, front: Front, work: Coroutine[None, None, T]) -> T:
        """Do the work. Raises: Stopped when a signal or /shutdown comes first, the fatal error when one does."""
        async with running(work) as task:
            await first_of(task, front.fatal, self._signals.first, front.drain_requested)
            if front.fatal.done():
                raise front.fatal.result()
            if not task.done():
                raise Stopped
            return task.result()

    async def _serve(self, front: Front, port: int) -> int:
        """Announce, serve, drain. Raises: StartupError for what ended it too early, once all jobs have their ends."""
        failed: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
        announcing = supervised(self._announce(front, port), failed.set_result, "the ready callback")
        await first_of(failed, front.fatal, self._signals.first, front.drain_requested)
        await ended(announcing)
        code = await self._drain(front)
        for reason in (front.fatal, failed):
            if reason.done():
                raise reason.result()
        return code

    async def _announce(self, front: Front, port: int) -> None:
        """Send the ready callback, and again after each engine restart. This never returns by itself."""
        url = self._settings.callback_url
        if url is not None and is_test_mode(url):
            log.info("callback_sent", skipped="test mode", url=shown_url(url))
        elif url is not None:
            await self._call_back(front, url, port)
            while True:
                await front.next_restart()
                try:
                    await self._call_back(front, url, port)
                except CallbackFailed as error:
                    log.warning("callback_sent", code=error.code, message=str(error))
        await asyncio.get_running_loop().create_future()

    async def _call_back(self, front: Front, url: str, port: int) -> None:
        settings, facts = self._settings, front.facts
        assert facts is not None
        uri = settings.advertise_url or f"http://localhost:{port}"
        body = LegacyReadyCallback(worker_id=settings.worker_id, vram_bytes=front.vram_bytes, uri=uri)
        if not settings.legacy_callback_body:
            body = ReadyCallback(
                **asdict(body),
                model_ref=settings.reported_model_ref,
                memory_bytes=facts.memory_bytes,
                memory_architecture=facts.memory_architecture,
                url=uri,
                backend=facts.backend,
                device=facts.device_index,
            )
        await announce(url, encode_json(body), token=settings.api_key)
        log.info("callback_sent", url=shown_url(url))

    async def _drain(self, front: Front) -> int:
        """Let accepted jobs finish within the time-out; end the rest. Returns the exit code."""
        front.drain()
        log.info("shutdown", jobs=len(front.jobs), timeout_s=self._settings.shutdown_timeout_sec)
        await first_of(front.idle, self._signals.second, front.fatal, timeout_s=self._settings.shutdown_timeout_sec)
        front.end_all("the worker is shutting down")
        await first_of(front.unwatched, timeout_s=FAREWELL_S)
        return 1 if self._signals.second.is_set() else 0


def _report(error: StartupError, settings: Settings, model_path: Path | None) -> None:
    """Log the one line that says why there is no worker, whatever the reason."""
    device, memory = settings.device, {}
    if isinstance(error, InsufficientMemory):
        device = error.device or device
        memory = {"needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
    log.error(
        "error",
        code=error.code,
        message=str(error),
        device=device,
        model=settings.model,
        model_path=str(model_path or ""),
        exc_info=error.__cause__ if isinstance(error, InternalFailure) else None,
        **memory,
    )


def _report_ready(front: Front, sock: socket.socket, settings: Settings) -> None:
    facts = front.facts
    assert facts is not None
    log.info(
        "ready",
        model=facts.name,
        model_ref=settings.reported_model_ref,
        device=facts.device_name,
        attention=facts.attention,
        context_length=facts.context_length,
        slots=facts.parallel,
        memory_bytes=facts.memory_bytes,
        prefill_chunk=facts.prefill_chunk,
        padded_widths=", ".join(f"{n} to {m}" for n, m in facts.padded_widths) or None,
        draft_model=facts.draft.name if facts.draft is not None else None,
    )
    if log_setup.is_pretty(settings.log_format):
        sys.stderr.write(_example(sock, settings, is_chat=facts.model.chat_template is not None))


def _example(sock: socket.socket, settings: Settings, *, is_chat: bool) -> str:
    """A line to paste into another terminal, and the address of the page."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    asked = {"messages": question} if is_chat else {"prompt": "The capital of France is"}
    path, body = f"/v1/{'chat/' * is_chat}completions", json.dumps({**asked, "max_tokens": 32})
    token = "" if settings.api_key is None else ' -H "authorization: Bearer $LLORCH_API_TOKEN"'
    url = url_of(sock).replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104 - shown, not bound
    page = "" if settings.no_page else f"  or open {url}/ in a browser\n"
    return f"\nTry it:\n  curl {url}{path} -H 'content-type: application/json'{token} -d '{body}'\n{page}\n"
