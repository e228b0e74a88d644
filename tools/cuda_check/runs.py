"""A round: each step in a process of its own and within its time, its end into the report at once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tools import CHECKOUT
from tools.cuda_check.report import Report, Step
from tools.cuda_check.steps import STEPS, Asked, Found

BUILD = "build"
ORDER = (BUILD, *STEPS)
REPORT, LOGS = "report.json", "logs"
_KEPT_OF_A_LOG = 300

Say = Callable[[str], None]


class Round:
    """`names` of STEPS, into `out`/report.json, where `report` is what it begins with."""

    def __init__(self, report: Report, asked: Asked, out: Path, *, limit_s: float | None, say: Say) -> None:
        """`limit_s`: instead of each step's own limit."""
        self._report = report
        self._asked = asked
        self._out = out
        self._limit_s = limit_s
        self._say = say

    def run(self, names: Sequence[str], *, again: bool) -> None:
        """Run the steps that have not passed before, or all of them with `again`. Without the device no other step
        runs."""
        for name in names:
            if not again and self._has_passed(name):
                self._say(f"{name}: passed before")
                continue
            self._say(f"{name} …")
            step = self._step(name)
            self.keep(step)
            if name == "device" and step.outcome == "failed":
                return

    def keep(self, step: Step) -> None:
        """Into the report, and onto the screen."""
        self._report.keep(step, ORDER)
        self._report.write(self._out / REPORT)
        self._say(f"{step.name}: {step.outcome} in {step.seconds:.0f} s: {step.summary}")
        for failure in step.failures:
            self._say(f"    {failure}")

    def _has_passed(self, name: str) -> bool:
        before = self._report.step(name)
        return before is not None and before.outcome == "passed"

    def _step(self, name: str) -> Step:
        began_s = time.monotonic()
        limit_s = STEPS[name].limit_s if self._limit_s is None else self._limit_s
        ended = run_apart(name, self._asked, self._out / LOGS, limit_s=limit_s)
        seconds = time.monotonic() - began_s
        return step_of(name, ended, seconds)


def step_of(name: str, ended: Found | str, seconds: float) -> Step:
    """A step of the report from its result, or from why there is none. Figures are kept whatever they show."""
    if isinstance(ended, str):
        return Step(name=name, outcome="failed", seconds=seconds, summary=ended)
    return Step(
        name=name,
        outcome="failed" if ended.failures else "passed",
        seconds=seconds,
        summary=ended.summary,
        figures=ended.figures,
        failures=ended.failures,
    )


def run_apart(name: str, asked: Asked, logs: Path, *, limit_s: float) -> Found | str:
    """The result of the step, or one line that says why there is none. Its processes are gone when this returns.

    `logs` is a folder; NAME.log there has all that the step printed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log, result = logs / f"{name}.log", logs / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tools.cuda_check", "step", name, msgspec.json.encode(asked).decode(), str(result)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        code = _ended(process, limit_s)
    if code is None:
        return f"not done after {limit_s:g} s"
    if code == 0 and result.is_file():
        return msgspec.json.decode(result.read_bytes(), type=Found)
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else ""
    return ": ".join(part for part in (how, _last_line(log)) if part)


def _ended(process: "subprocess.Popen[bytes]", limit_s: float) -> int | None:
    """Its exit code; None where it had to be killed, with all that it started."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_all(process)


def _kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Also what outlived a step that crashed: a worker it had started still holds the device's memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").split("\n")
    return next((line.strip()[-_KEPT_OF_A_LOG:] for line in reversed(lines) if line.strip()), "it said nothing")
