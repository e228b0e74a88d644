"""A day of mixed traffic at one worker: trace after trace until it is stopped, with figures each minute.

An answer must be whole, once. Every few traces come from a pool whose answers alone are stored; those must be equal
too. The other traces are new each time, because a leak may cost something only for texts that were never seen before.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from client.child import Child
from tools.bench.processes import memory_of
from tools.fire.alone import Store, alone
from tools.fire.answers import Answer
from tools.fire.campaign import Say
from tools.fire.models import N_CTX, Name
from tools.fire.player import Client, Run, base_flags, complaints, engines_of, metrics_of, sample_of
from tools.fire.trace import Life, Trace, draw
from tools.fire.verdicts import faults, unanswered

MAX_GROWTH_BYTES = 5 * 1000**2
"""The growth of one process's own memory after the first tenth of the time."""
MAX_MORE = 4
"""More descriptors or threads of one process."""

_N_EACH = 60
"""The requests of a trace."""
_N_KNOWN = 3
"""The traces with stored answers alone."""
_KNOWN_EVERY = 4
_FIRST_FRESH = 1_000_000
_N_SHOWN = 3
_MB = 1000**2


class Footprint(msgspec.Struct, frozen=True):
    """One process while the worker is idle."""

    resident_bytes: int
    own_bytes: int
    """The resident bytes that are neither a file's nor the prefix cache's, which is shared between processes."""
    n_descriptors: int
    n_threads: int


class Sample(msgspec.Struct, frozen=True):
    """The worker between two bursts. Counts are those since the start."""

    at_s: float
    n_requests: int
    n_tokens: int
    n_refused: int
    """Answers with a status of 400 to 499, which the traces ask for."""
    n_lost: int
    cached_bytes: int
    processes: dict[str, Footprint]

    def __str__(self) -> str:
        each = "; ".join(
            f"{name} {one.resident_bytes / _MB:.1f} MB, of which {one.own_bytes / _MB:.1f} its own, "
            f"{one.n_descriptors} descriptors, {one.n_threads} threads"
            for name, one in self.processes.items()
        )
        return (
            f"{self.at_s / 60:.1f} min: {self.n_requests} requests, {self.n_tokens} tokens, {self.n_refused} refused, "
            f"{self.n_lost} lost; {each}; {self.cached_bytes / _MB:.1f} MB cached"
        )


class Day:
    """A folder with the models, the answers alone, and the figures of the run."""

    def __init__(self, folder: Path, name: Name) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._models = folder / "models"
        self._name: Name = name
        self.figures = folder / f"day-{name}.jsonl"
        self.samples: list[Sample] = []
        self.found: list[str] = []
        """One line for each answer that is lost or wrong."""
        self._counts: Counter[str] = Counter()

    def run(self, is_over: Callable[[], bool], say: Say, *, every_s: float = 60.0) -> list[str]:
        """Go on until it is over. Return what was wrong: answers, and growth."""
        self.figures.unlink(missing_ok=True)
        with (
            TemporaryDirectory(prefix="day-") as cache,
            Child(*self._flags(Path(cache)), has_own_session=True) as child,
        ):
            child.ready()
            say(f"{child.url} is under fire; its figures go to {self.figures}")
            begun_s = reported_s = time.monotonic()
            for trace, life, answers in self._lives():
                self._live(child, trace, life, answers, say)
                self.samples.append(self._sample(child, time.monotonic() - begun_s))
                if child.process.poll() is not None:
                    return [*self.found, f"the worker ended: {''.join(child.stderr[-_N_SHOWN:])}"]
                child.drain_log()
                if is_over():
                    break
                if time.monotonic() - reported_s >= every_s:
                    reported_s = time.monotonic()
                    self._report(say)
            self._report(say)
            child.process.terminate()
            if code := child.process.wait(60):
                self._note([f"the worker's exit code is {code}"], say)
        return [*self.found, *grown(self.samples)]

    def _flags(self, cache: Path) -> list[str]:
        """Few cells and a small cache, so that jobs are paused and cached cells come and go."""
        n_jobs = "1" if self._name == "hybrid" else "8"
        n_cells = N_CTX if self._name == "default" else 2 * N_CTX
        flags = ["--ctx-size", str(n_cells), "--parallel", n_jobs, "--prefix-cache-mb", "16", "--max-queue", "256"]
        return [*base_flags(self._models, self._name), *flags, "--prefix-cache-dir", str(cache)]

    def _lives(self) -> Iterator[tuple[Trace, Life, dict[str, Answer] | None]]:
        """Yield the lives of traces without end, and of those that are known the answers alone, which the first use
        asks for.
        """
        for n in count():
            seed = n // _KNOWN_EVERY % _N_KNOWN if n % _KNOWN_EVERY == 0 else _FIRST_FRESH + n
            trace = draw(seed, n_requests=_N_EACH, models=(self._name,))
            answers = None
            if seed < _N_KNOWN:
                with closing(Store(self._folder / "alone.sqlite")) as store:
                    answers = alone(store, self._models, trace)
            for life in trace.lives:
                yield trace, life, answers

    def _live(self, child: Child, trace: Trace, life: Life, answers: dict[str, Answer] | None, say: Say) -> None:
        """Play a part of a trace. No engine is killed: what it holds is what is measured."""
        calm = msgspec.structs.replace(life, kills_ms=())
        run = Run(asyncio.run(Client(child, trace, self._counts["lives"]).play(calm)))
        run.complaints += complaints(child)
        self._counts["lives"] += 1
        self._counts["requests"] += len(run.outcomes)
        self._counts["refused"] += sum(400 <= outcome.status < 500 for outcome in run.outcomes)
        found = unanswered(run) if answers is None else faults(run, answers)
        self._note([f"seed {trace.seed}: {line}" for line in found], say)

    def _note(self, lines: list[str], say: Say) -> None:
        self.found += lines
        for line in lines[:_N_SHOWN]:
            say(line[:1000])

    def _sample(self, child: Child, at_s: float) -> Sample:
        metrics = metrics_of(child)
        return Sample(
            at_s=at_s,
            n_requests=self._counts["requests"],
            n_tokens=int(sample_of(metrics, "worker_tokens_generated_total")),
            n_refused=self._counts["refused"],
            n_lost=len(self.found) + int(sample_of(metrics, "worker_engine_restarts_total")),
            cached_bytes=int(sample_of(metrics, "worker_prefix_cache_bytes")),
            processes=dict(footprints(child)),
        )

    def _report(self, say: Say) -> None:
        last = self.samples[-1]
        say(str(last))
        with self.figures.open("ab") as file:
            file.write(msgspec.json.encode(last) + b"\n")


def footprints(child: Child) -> Iterator[tuple[str, Footprint]]:
    """The front and the engine, as far as they are there."""
    with suppress(psutil.NoSuchProcess):
        for name, process in (
            ("front", psutil.Process(child.process.pid)),
            *(("engine", one) for one in engines_of(child)),
        ):
            if memory := memory_of(process.pid):
                yield (
                    name,
                    Footprint(memory.resident_bytes, memory.anonymous_bytes, process.num_fds(), process.num_threads()),
                )


def grown(samples: Sequence[Sample]) -> list[str]:
    """One line for each figure that is larger in the last tenth of the time than in the second one, beyond its bound.

    The medians of each minute's least are compared. An engine returns freed memory at most once a minute, so a sample
    between two returns shows the traffic since the last one; and a sample may meet a connection that is being closed.
    What a process never gives back raises the least, too.
    """
    if not samples:
        return ["nothing was sampled"]
    found = [f"{samples[-1].n_lost} lost"] if samples[-1].n_lost else []
    tenth_s = samples[-1].at_s / 10
    after = [sample for sample in samples if sample.at_s >= tenth_s]
    early = [sample for sample in after if sample.at_s < 2 * tenth_s] or after[:1]
    late = [sample for sample in after if sample.at_s >= 9 * tenth_s]
    for process in late[-1].processes:
        for name, most in (("own_bytes", MAX_GROWTH_BYTES), ("n_descriptors", MAX_MORE), ("n_threads", MAX_MORE)):
            before, now = (statistics.median(_least_of_minutes(part, process, name)) for part in (early, late))
            if now - before > most:
                found.append(
                    f"{name} of the {process} grew by {now - before:g}, from {before:g} to {now:g}; at most {most}"
                )
    return found


def _least_of_minutes(samples: Sequence[Sample], process: str, name: str) -> list[float]:
    least: dict[int, float] = {}
    for sample in samples:
        if process in sample.processes:
            minute, value = int(sample.at_s // 60), getattr(sample.processes[process], name)
            least[minute] = min(value, least.get(minute, value))
    return list(least.values())
