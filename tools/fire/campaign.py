"""Trace after trace until a number of requests was sent: resumable, with what it finds on the disk."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from tools.fire.alone import Store, alone
from tools.fire.models import NAMES, Name
from tools.fire.player import Run, play
from tools.fire.trace import Trace, draw, saved
from tools.fire.verdicts import faults

Say = Callable[[str], None]
_REPORT_S = 60.0


class Progress(msgspec.Struct):
    """The count of a campaign so far."""

    next_seed: int = 0
    n_requests: int = 0
    n_by_status: dict[str, int] = {}
    failed_seeds: list[int] = []
    counts: dict[str, int] = {}
    busy_s: float = 0.0

    def __str__(self) -> str:
        statuses = ", ".join(f"{status}: {n}" for status, n in sorted(self.n_by_status.items()))
        counts = ", ".join(f"{name}: {n}" for name, n in self.counts.items())
        return (
            f"{self.n_requests} requests, next seed {self.next_seed}, {len(self.failed_seeds)} traces failed, "
            f"{self.busy_s:.0f} s; statuses {statuses}; {counts}"
        )


class Campaign:
    """A folder with a campaign. Use `closing`."""

    def __init__(self, folder: Path, models: tuple[Name, ...] = NAMES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._models = models
        self._store = Store(folder / "alone.sqlite")
        self._file = folder / "progress.json"
        self.progress = (
            msgspec.json.decode(self._file.read_bytes(), type=Progress) if self._file.exists() else Progress()
        )

    def close(self) -> None:
        self._store.close()

    def run(self, n_requests: int, say: Say, *, first_seed: int = 0, n_each: int = 250) -> Progress:
        """Go on until so many requests were sent in all."""
        progress = self.progress
        progress.next_seed = max(progress.next_seed, first_seed)
        reported_s = time.monotonic()
        while progress.n_requests < n_requests:
            begun_s = time.monotonic()
            n_left = n_requests - progress.n_requests
            trace = draw(progress.next_seed, n_requests=min(n_each, n_left), models=self._models)
            run, found = self.judged(trace)
            self._count(trace, run, time.monotonic() - begun_s)
            if found:
                progress.failed_seeds.append(trace.seed)
                path = saved(trace, self.folder / f"seed-{trace.seed}.json")
                path.with_suffix(".txt").write_text("\n".join(found))
                say(f"seed {trace.seed} ({trace.model}): {len(found)} faults; {path}\n  {found[0][:1000]}")
            self._file.write_bytes(msgspec.json.encode(progress))
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                say(str(progress))
        return progress

    def judged(self, trace: Trace) -> tuple[Run, list[str]]:
        """Play a trace. Return its outcomes, and the faults."""
        models = self.folder / "models"
        answers = alone(self._store, models, trace)
        run = play(trace, models)
        return run, faults(run, answers)

    def again(self, trace: Trace, n_tries: int) -> list[str]:
        """The faults of the first of some tries that has any: one that depends on the moment need not come at once."""
        for _ in range(n_tries):
            _, found = self.judged(trace)
            if found:
                return found
        return []

    def _count(self, trace: Trace, run: Run, took_s: float) -> None:
        progress = self.progress
        progress.next_seed = trace.seed + 1
        progress.n_requests += trace.n_requests
        progress.counts = dict(Counter(progress.counts) + run.counts)
        progress.busy_s += took_s
        counted = Counter(str(outcome.status) for outcome in run.outcomes)
        progress.n_by_status = dict(Counter(progress.n_by_status) + counted)
