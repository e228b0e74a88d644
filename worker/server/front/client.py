"""The front's handle on the current engine: it starts engines, and survives their death or silence
(docs/protocol.md#life-of-a-job). dispatch.py sorts their frames, and decides what becomes of the jobs of one that died.

    LOADING ──Loaded──▶ RUNNING ──death──▶ RESTARTING ──Loaded──▶ RUNNING
       └──death, LoadFailed──▶ FAILED ◀──fifth death in ten minutes──┘

Every state goes to FAILED, too, when one of the client's own tasks raises, and to CLOSED when `close` is called.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto

from worker.config.engine_settings import Configure
from worker.errors import EngineCrashed, InsufficientMemory, ModelLoadFailed, StartupError, WorkerUnhealthy
from worker.server.front.dispatch import MAX_DEATHS, Dispatch, Report
from worker.server.front.link import EngineLink, LinkOwner
from worker.server.front.supervision import Watchdog, ended, every, supervised
from worker.wire.load import AskResidency, Loaded, LoadFailed

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


_OVER = frozenset({EngineState.FAILED, EngineState.CLOSED})

LEGAL_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.LOADING: _OVER | {EngineState.RUNNING},
    EngineState.RUNNING: _OVER | {EngineState.RESTARTING},
    EngineState.RESTARTING: _OVER | {EngineState.RUNNING, EngineState.RESTARTING},  # a successor may die while it loads
    EngineState.FAILED: frozenset({EngineState.CLOSED}),
    EngineState.CLOSED: frozenset(),
}


class Observer:
    """The receiver of what the client's engines do. An observer overrides the methods that it needs."""

    def on_report(self, report: Report) -> None:
        """The engine has sent this."""

    def on_engine_line(self, line: str) -> None:
        """The engine has written a line to its stderr."""

    def on_restarting(self, cause: str, last_words: str) -> None:
        """The engine has died, and a successor is being started."""

    def on_restarted(self, facts: Loaded) -> None:
        """The successor is ready. `EngineClient.on_fatal` refuses it."""

    def on_fatal(self, error: StartupError) -> None:
        """There will be no further engine. This is called before the jobs in flight are ended."""


Spawn = Callable[[Sequence[str], LinkOwner, Mapping[str, str]], Awaitable[EngineLink]]


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
        self._link: EngineLink | None = None
        self._first_load: asyncio.Future[Loaded] | None = None
        self._load_failure: StartupError | None = None
        self._spawning: asyncio.Task[None] | None = None
        self.state = EngineState.LOADING
        self.facts: Loaded | None = None
        self.jobs = Dispatch(self._watchdog, observer.on_report, self._load_ended, clock)
        """The jobs and questions that this client is responsible for."""
        # For LinkOwner: frames and lines go straight to who takes them.
        self.on_message, self.on_line = self.jobs.on_message, observer.on_engine_line

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
        self.jobs.is_over = state in _OVER

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
        self._load_failure = None
        self._watchdog.expect_load()
        try:
            self._link = await self._spawn_link(self._command, self, self._environment)
        except OSError as error:
            self.on_exit(f"it could not be started: {error}", "")
        else:
            self._link.send(self._config)

    def _kill(self, cause: str) -> None:
        if self._link is not None:
            self._link.kill(cause)

    def _ask_residency(self) -> None:
        """Ask an engine with a loaded model on a GPU where the model is. A model cannot leave a CPU's memory."""
        is_on_gpu = self.facts is not None and self.facts.backend != "cpu"
        if self.state is EngineState.RUNNING and is_on_gpu and self._link is not None:
            self._link.send(AskResidency())

    @property
    def pid(self) -> int | None:
        """The process id of the current engine, or of the one that has just died."""
        return self._link.pid if self._link is not None else None

    # ── what the engine says (LinkOwner) ─────────────────────────────────────────────────────────

    def _load_ended(self, facts: Loaded | LoadFailed) -> None:
        if isinstance(facts, LoadFailed):
            self._load_failure = _load_error(facts)
            return
        self._watchdog.loaded(facts.step_s)
        is_first = self.facts is None
        self.facts = facts
        self._move(EngineState.RUNNING)
        self._config = self._config.successor(facts)
        if is_first and self._first_load is not None and not self._first_load.done():
            self._first_load.set_result(facts)
        else:
            self._observer.on_restarted(facts)
        if self.state is EngineState.RUNNING:  # the observer may have refused the successor
            assert self._link is not None
            self.jobs.open_gate(self._link.send)

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def on_exit(self, cause: str, last_words: str) -> None:
        if self.state in _OVER:
            return
        cause = str(self._load_failure or cause)
        if self.state is EngineState.LOADING:
            what = "the engine died while loading the model"
            self.on_fatal(self._load_failure or EngineCrashed(what, cause, last_words))
            return
        if self.jobs.close_gate():
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
    needed_bytes, available_bytes = failed.needed_bytes, failed.available_bytes
    if needed_bytes is None or available_bytes is None:
        return ModelLoadFailed(failed.message)
    return InsufficientMemory(
        failed.message, needed_bytes=needed_bytes, available_bytes=available_bytes, device=failed.device
    )
