"""An engine client on stage: real jobs, a real client, and engines that are no processes but say what the test says."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import msgspec

from tests.loops import on_a_loop
from worker.apis.core.request import JobRequest, Request
from worker.apis.pool.execute import choose_dialect
from worker.config.engine_settings import Configure
from worker.config.settings import Settings
from worker.errors import StartupError
from worker.observe.metrics import Metrics
from worker.server.front.client import RESIDENCY_PERIOD_S, EngineClient, EngineState, Observer
from worker.server.front.dispatch import Question
from worker.server.front.job import Admission, Job, next_chunk_of
from worker.server.front.link import EngineLink, LinkOwner
from worker.server.front.state import Front
from worker.wire.jobs import (
    Accepted,
    Cancel,
    Delta,
    Finished,
    JobKey,
    SamplingParams,
    Started,
    StepBegun,
    StepDone,
    Submit,
    TokenId,
)
from worker.wire.load import Loaded
from worker.wire.messages import Inbound, Outbound, QuestionKey, Tokenize, Tokenized

CONFIG = Configure(model_path="/m.gguf", device="cpu", ubatch_size=512, threads=1, threads_batch=1, cache_type_k="f16")
CHEAP_ROWS = ((1, 1.0), (32, 1.1))
"""(tokens in a step, seconds): drafts nearly always pay."""
FACTS = Loaded(
    places=b"a plan",
    name="toy",
    quant_kind="F32",
    tokenizer_kind="none",
    vocab_size=64,
    context_length=1024,
    n_cells=4096,
    parallel=8,
    resident=True,
    backend="cpu",
    device_index=0,
    device_name="none",
    memory_architecture="host",
    memory_bytes=1,
    prefill_chunk=16,
    row_costs=((1, 0.01), (2, 0.015)),
    prefix_cache_bytes=4096,
)
WATCHDOG_S = 30.0

P = ParamSpec("P")


@dataclass(eq=False)
class Engine(EngineLink):
    """One engine. `sent` is what the client sent it, `submitted` the jobs among that which it still has, and
    `asked` the questions that it has not answered."""

    sent: list[Inbound | Configure] = field(default_factory=list)
    submitted: list[JobKey] = field(default_factory=list)
    asked: list[QuestionKey] = field(default_factory=list)
    started: set[JobKey] = field(default_factory=set)
    """Jobs that have got a slot, of which an engine tells once."""
    killed_for: str | None = None
    is_closed: bool = False

    @property
    def pid(self) -> int:
        return 0

    def send(self, message: Inbound | Configure) -> None:
        self.sent.append(message)
        if isinstance(message, Submit):
            self.submitted.append(message.job)
        elif isinstance(message, Tokenize):
            self.asked.append(message.question)
        elif isinstance(message, Cancel):
            self.forget(message.job)

    def forget(self, key: JobKey) -> None:
        """Idempotent, as a Cancel is."""
        self.submitted = [other for other in self.submitted if other != key]

    def kill(self, cause: str) -> None:
        self.killed_for = cause

    async def close(self) -> None:
        self.is_closed = True


class Stage(Observer):
    """The client's surroundings: they spawn `engines` and observe, unless another does. `now_s` is the clock."""

    def __init__(self, *, observer: Observer | None = None, residency_period_s: float = RESIDENCY_PERIOD_S) -> None:
        self.now_s = 0.0
        self.engines: list[Engine] = []
        self.jobs: dict[JobKey, Job] = {}
        self.questions: dict[QuestionKey, Question] = {}
        self.ended: list[JobKey] = []
        """The jobs in the order of their ends; more than once if they ended more than once."""
        self.deaths: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.n_restarted = 0
        self.failure: StartupError | None = None
        self.metrics = Metrics("stage")
        self.client = EngineClient(
            CONFIG,
            observer or self,
            environment={},
            watchdog_s=WATCHDOG_S,
            spawn=self._spawn,
            clock=lambda: self.now_s,
            residency_period_s=residency_period_s,
        )

    async def _spawn(self, _command: Sequence[str], _owner: LinkOwner, _env: Mapping[str, str]) -> Engine:
        self.engines.append(Engine())
        return self.engines[-1]

    def on_engine_line(self, line: str) -> None:
        self.lines.append(line)

    def on_restarting(self, cause: str, last_words: str) -> None:
        self.deaths.append((cause, last_words))

    def on_restarted(self, facts: Loaded) -> None:
        self.n_restarted += 1

    def on_fatal(self, error: StartupError) -> None:
        self.failure = error

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def say(self, message: Outbound) -> None:
        self.client.on_message(message)

    async def open(self, facts: Loaded = FACTS) -> None:
        starting = asyncio.create_task(self.client.start())
        await self.until(lambda: bool(self.engines))
        self.say(facts)
        await starting

    async def die(self, last_words: str = "") -> None:
        """The engine is gone; unless the client gives up, its successor has been started and is silent."""
        n_engines = len(self.engines)
        self.client.on_exit("it was ended by SIGKILL", last_words)
        await self.until(lambda: len(self.engines) > n_engines or self.client.state is EngineState.FAILED)

    async def die_and_reload(self) -> None:
        await self.die()
        self.say(FACTS)

    @staticmethod
    async def until(predicate: Callable[[], bool]) -> None:
        for _ in range(100):
            if predicate():
                return
            await asyncio.sleep(0)
        raise AssertionError("it did not happen")

    def submit(self) -> JobKey:
        key = JobKey(len(self.jobs) + 1)
        request = JobRequest(
            job_id=f"job-{key}",
            asked=Request(prompts=("x",), params=SamplingParams(max_tokens=100, seed=key)),
            prompt="x",
            dialect=choose_dialect("application/jsonl", sse_event_names=False),
        )
        admission = Admission(
            correlation_id="", arrived_s=0.0, expires_s=1e9, model="toy", vram_bytes=0, metrics=self.metrics
        )
        self.jobs[key] = Job(key, request, admission, self._on_end)
        self.client.jobs.submit(self.jobs[key])
        return key

    def _on_end(self, job: Job) -> None:
        self.ended.append(job.key)
        self.client.jobs.release(job)

    def ask(self) -> QuestionKey:
        key = QuestionKey(len(self.questions) + 1)
        self.questions[key] = Question(Tokenize(question=key, prompt="x"))
        self.client.jobs.ask(self.questions[key])
        return key

    def answer(self, key: QuestionKey) -> None:
        self.engine.asked.remove(key)
        self.say(Tokenized(question=key, tokens=(TokenId(1),), text="x"))

    def accept(self, *keys: JobKey) -> None:
        for key in keys:
            self.say(Accepted(job=key, prompt_tokens=1))

    def begin(self, *keys: JobKey, n_cached: int = 0) -> None:
        """A step with these jobs runs."""
        first = [key for key in keys if key not in self.engine.started]
        self.engine.started.update(first)
        self.say(StepDone(started=[Started(key, n_cached) for key in first]))
        self.say(StepBegun(jobs=keys))

    def run(self, *keys: JobKey) -> JobKey:
        """These jobs, or a new one, are accepted and in a step that runs."""
        keys = keys or (self.submit(),)
        self.accept(*keys)
        self.begin(*keys)
        return keys[0]

    def draw(self, *keys: JobKey, text: str = "x") -> None:
        self.say(StepDone(deltas=[Delta(key, text) for key in keys], kind="decode"))

    def finish(self, *keys: JobKey) -> None:
        """Their last token, and their ends."""
        for key in keys:
            self.engine.forget(key)
        deltas = [Delta(key, "x") for key in keys]
        self.say(StepDone(deltas=deltas, finished=[Finished(key, "EOS") for key in keys], kind="decode"))

    def let_time_pass(self, seconds: float) -> None:
        """The front's loop turns, and the engine is silent. The watchdog's own timer is too slow to matter."""
        watchdog = self.client._watchdog
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += watchdog.tick_s
            watchdog.tick()

    async def events(self, key: JobKey) -> list[dict[str, Any]]:
        """All events of a job that has ended."""
        job = self.jobs[key]
        assert job.is_ended
        lines = b""
        while chunk := await next_chunk_of([job]):
            lines += chunk
        return [msgspec.json.decode(line) for line in lines.splitlines()]


def rehearsed(play: Callable[Concatenate[Stage, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test whose play has an open stage. What else the play takes, pytest gives it."""

    @wraps(play)
    async def performance(*args: P.args, **kwargs: P.kwargs) -> None:
        stage = Stage()
        await stage.open()
        await play(stage, *args, **kwargs)
        await stage.client.close()
        assert stage.engine.is_closed

    signature = inspect.signature(play)
    without_stage = signature.replace(parameters=[*signature.parameters.values()][1:])
    performance.__signature__ = without_stage  # type: ignore[attr-defined] # what inspect.signature looks for first
    return on_a_loop(performance)


def fronted(stage: Stage, **settings: Any) -> Front:
    """A front over the stage's client; the stage is still who observes that client."""
    front = Front(Settings(**settings), Metrics("stage"))
    front.open(stage.client)
    return front
