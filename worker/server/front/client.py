"""The front's handle on the current engine: it starts engines, sorts their frames, and survives their death.

It runs on the front's event loop. It owns the generations, the watchdog and docs/protocol.md#life-of-a-job's rules for
an engine that died; dispatch.py decides what becomes of its jobs. It knows nothing of HTTP. `Observer` gets the events
that the rest of the front needs.

    LOADING ──Loaded──▶ RUNNING ──death──▶ RESTARTING ──Loaded──▶ RUNNING
       └──death, LoadFailed──▶ FAILED ◀──fifth death in ten minutes──┘

Every state goes to FAILED, too, when one of the client's own tasks raises, and to CLOSED when `close` is called.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from worker.config.engine import successor_of
from worker.config.engine_settings import Configure
from worker.errors import EngineCrashed, InsufficientMemory, ModelLoadFailed, StartupError, WorkerUnhealthy
from worker.server.front.dispatch import Dispatch
from worker.server.front.link import EngineLink, LinkOwner
from worker.server.front.supervision import ended, every, supervised
from worker.server.front.watchdog import MAX_DEATHS, Deaths, Watchdog
from worker.server.front.work import Charge
from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import Accepted, Cancel, StepBegun, StepDone, Submit
from worker.wire.load import AskResidency, Loaded, LoadFailed, PrefixCacheFound, Progress, Residency, Warned
from worker.wire.messages import Inbound, Outbound
from worker.wire.questions import Detokenize, Detokenized, Tokenize, Tokenized, Untokenized
from worker.wire.refusals import Refused

ENGINE_COMMAND = (sys.executable, "-P", "-m", "worker.server.process.main")
"""The flag -P keeps the working directory from planting modules."""

RESIDENCY_PERIOD_S = 60.0
"""The seconds between two questions to the engine whether its model is still on the GPU."""


class EngineState(Enum):
    LOADING = auto()
    RUNNING = auto()
    RESTARTING = auto()
    FAILED = auto()
    CLOSED = auto()


LEGAL_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.LOADING: frozenset({EngineState.RUNNING, EngineState.FAILED, EngineState.CLOSED}),
    EngineState.RUNNING: frozenset({EngineState.RESTARTING, EngineState.FAILED, EngineState.CLOSED}),
    # A successor may die while it loads.
    EngineState.RESTARTING: frozenset(
        {EngineState.RUNNING, EngineState.RESTARTING, EngineState.FAILED, EngineState.CLOSED}
    ),
    EngineState.FAILED: frozenset({EngineState.CLOSED}),
    EngineState.CLOSED: frozenset(),
}

_OVER = (EngineState.FAILED, EngineState.CLOSED)

_SIGNS_OF_LIFE = (StepDone, StepBegun, Progress, Loaded, LoadFailed)
"""Frames of the thread that loads and steps. The intake thread's answers do not show that this thread is alive."""


class Observer:
    """The events of the client's engines. An observer overrides the ones that it needs."""

    def on_progress(self, percent: int) -> None:
        """This percentage of the model is loaded."""

    def on_step(self, step: StepDone) -> None:
        """The engine has done a step; the jobs have its results already."""

    def on_blocks_changed(self, message: BlocksChanged) -> None:
        """The cached blocks have changed."""

    def on_residency(self, residency: Residency) -> None:
        """The engine has checked where its model is."""

    def on_prefix_cache_found(self, found: PrefixCacheFound) -> None:
        """The engine has looked for saved cells of earlier engines."""

    def on_warned(self, warned: Warned) -> None:
        """Something has failed in the engine that ends no job."""

    def on_engine_line(self, line: str) -> None:
        """The engine has written a line to its stderr."""

    def on_restarting(self, cause: str, last_words: str) -> None:
        """The engine has died, and a successor is being started."""

    def on_restarted(self, facts: Loaded) -> None:
        """The successor is ready. `EngineClient.on_fatal` refuses it."""

    def on_fatal(self, error: StartupError) -> None:
        """There will be no further engine. This is called before the jobs in flight are ended."""


class Link(Protocol):
    """One engine of a generation. EngineLink and the tests' engine without a process implement it."""

    @property
    def pid(self) -> int: ...

    def send(self, message: Inbound | Configure) -> None: ...

    def kill(self, cause: str) -> None: ...

    async def close(self) -> None: ...


Spawn = Callable[[Sequence[str], int, LinkOwner, Mapping[str, str]], Awaitable[Link]]


class EngineClient:
    """Call `start` once; then submit to `jobs` until `close`."""

    def __init__(
        self,
        config: Configure,
        observer: Observer,
        *,
        environment: Mapping[str, str],
        watchdog_s: float,
        model_bytes: int = 0,
        command: Sequence[str] = ENGINE_COMMAND,
        spawn: Spawn = EngineLink.spawn,
        clock: Callable[[], float] = time.monotonic,
        residency_period_s: float = RESIDENCY_PERIOD_S,
    ) -> None:
        self._config = config
        self._observer = observer
        self._environment = environment
        self._command = command
        self._spawn_link = spawn
        self._clock = clock
        self._watchdog = Watchdog(self._kill, floor_s=watchdog_s, model_bytes=model_bytes, clock=clock)
        self._residency_period_s = residency_period_s
        self._timers: list[asyncio.Task[None]] = []
        self._link: Link | None = None
        self._generation = 0
        self._first_load: asyncio.Future[Loaded] | None = None
        self._load_failure: StartupError | None = None
        self._spawning: asyncio.Task[None] | None = None
        self.state = EngineState.LOADING
        self.facts: Loaded | None = None
        self.jobs = Dispatch(self._send, self._watchdog.expect_work)
        """The jobs and questions that this client is responsible for."""
        self._deaths = Deaths()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> Loaded:
        """Start the first engine and wait for its model. Raises: StartupError with the engine's own reason."""
        self._first_load = asyncio.get_running_loop().create_future()
        self._timers = [
            supervised(every(self._watchdog.tick_s, self._watchdog.tick), self.on_fatal, "the engine's watchdog"),
            supervised(every(self._residency_period_s, self._ask_residency), self.on_fatal, "the residency question"),
        ]
        self._spawning = supervised(self._spawn(), self.on_fatal, "the start of the engine")
        return await self._first_load

    def _move(self, state: EngineState) -> None:
        """The only way to another state. Raises: AssertionError for a move that LEGAL_MOVES lacks."""
        assert state in LEGAL_MOVES[self.state], f"engine: {self.state.name} -> {state.name} is not a legal move"
        self.state = state

    async def close(self) -> None:
        """End the engine; idempotent. The caller ends the jobs that are still in flight."""
        if self.state is not EngineState.CLOSED:
            self._move(EngineState.CLOSED)
        for timer in self._timers:
            await ended(timer)
        if self._spawning is not None:
            await asyncio.wait([self._spawning])
        if self._link is not None:
            await self._link.close()

    async def _spawn(self) -> None:
        self._generation += 1
        self._load_failure = None
        self._watchdog.expect_load()
        try:
            link = await self._spawn_link(self._command, self._generation, self, self._environment)
        except OSError as error:
            self.on_exit(self._generation, f"it could not be started: {error}", "")
            return
        self._link = link
        link.send(self._config)

    def _kill(self, cause: str) -> None:
        if self._link is not None:
            self._link.kill(cause)

    def _ask_residency(self) -> None:
        """Ask an engine with a loaded model on a GPU where the model is. A model cannot leave a CPU's memory."""
        if self.state is EngineState.RUNNING and self.facts is not None and self.facts.backend != "cpu":
            self._send(AskResidency())

    @property
    def pid(self) -> int | None:
        """The process id of the current engine, or of the one that has just died."""
        return self._link.pid if self._link is not None else None

    def _send(self, message: Submit | Cancel | AskResidency | Tokenize | Detokenize) -> None:
        if self._link is not None:
            self._link.send(message)

    # ── what the engine says (LinkOwner) ─────────────────────────────────────────────────────────

    def on_message(self, generation: int, message: Outbound) -> None:  # noqa: PLR0912 - a case for each frame
        if generation != self._generation or self.state in _OVER:
            return
        if isinstance(message, _SIGNS_OF_LIFE):
            self._watchdog.heartbeat()
        match message:
            case StepDone():
                if message.finished:
                    self._deaths.clear()
                self.jobs.step_done(message)
                self._observer.on_step(message)
            case StepBegun(jobs=jobs):
                self.jobs.step_begun(jobs)
            case Accepted():
                self.jobs.accepted(message)
            case Refused():
                self.jobs.refused(message)
            case Tokenized() | Untokenized() | Detokenized():
                self.jobs.answered(message)
            case BlocksChanged():
                self._observer.on_blocks_changed(message)
            case Progress(percent=percent):
                self._observer.on_progress(percent)
            case Loaded():
                self._loaded(message)
            case Warned():
                self._observer.on_warned(message)
            case LoadFailed():
                self._load_failure = _load_error(message)
            case Residency():
                self._observer.on_residency(message)
            case PrefixCacheFound():
                self._observer.on_prefix_cache_found(message)

    def on_line(self, line: str) -> None:
        self._observer.on_engine_line(line)

    def _loaded(self, facts: Loaded) -> None:
        self._watchdog.loaded(facts.step_s)
        is_first = self.facts is None
        self.facts = facts
        self._move(EngineState.RUNNING)
        self._config = successor_of(self._config, facts)
        if is_first and self._first_load is not None and not self._first_load.done():
            self._first_load.set_result(facts)
        else:
            self._observer.on_restarted(facts)
        if self.state is EngineState.RUNNING:  # the observer may have refused the successor
            self.jobs.open_gate()

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def on_exit(self, generation: int, cause: str, last_words: str) -> None:
        if generation != self._generation or self.state in _OVER:
            return
        cause = str(self._load_failure or cause)
        if self.state is EngineState.LOADING:
            what = "the engine died while loading the model"
            self.on_fatal(self._load_failure or EngineCrashed(what, cause, last_words))
            return
        match self.jobs.close_gate():
            case Charge.WORKER:
                # Deaths without a job to blame count too: a worker that always dies must not stay in the pool.
                self._deaths.add(self._clock())
            case Charge.WORK:
                pass
            case Charge.WORK_TWICE:
                self._deaths.withdraw()
        if self._deaths.are_too_many:
            what = f"the engine died {MAX_DEATHS} times without finishing a job"
            self.on_fatal(EngineCrashed(what, cause, last_words))
            return
        self._move(EngineState.RESTARTING)
        self._observer.on_restarting(cause, last_words)
        self._spawning = supervised(self._spawn(), self.on_fatal, "the restart of the engine")

    def on_fatal(self, error: StartupError) -> None:
        """Give up, whatever the reason. Idempotent.

        The front is informed before the jobs are ended, because ending them may be what fails.
        """
        if self.state in _OVER:
            return
        self._move(EngineState.FAILED)
        for timer in self._timers:
            timer.cancel()
        if self._first_load is not None and not self._first_load.done():
            self._first_load.set_exception(error)
        else:
            self._observer.on_fatal(error)
        self.jobs.end_all("INFERENCE_FAILED", "the worker has failed and is about to exit")
        self.jobs.fail_questions(WorkerUnhealthy("the worker has failed and is about to exit"))


def _load_error(failed: LoadFailed) -> StartupError:
    """Return the engine's reason for not loading as the error that the front raises."""
    if failed.needed_bytes is not None and failed.available_bytes is not None:
        return InsufficientMemory(
            failed.message,
            needed_bytes=failed.needed_bytes,
            available_bytes=failed.available_bytes,
            device=failed.device,
        )
    return ModelLoadFailed(failed.message)
