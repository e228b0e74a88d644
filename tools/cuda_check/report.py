"""The report of a round: one JSON file that grows step by step, its version, and its page of tables.

Owns the file: it is written whole after every step, so that a round that was broken off goes on where it was. Refuses
to know how anything is checked.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import Literal, Self

import msgspec

from parity.provenance import Machine, now_rfc3339, this_machine, versions
from tools.markdown import table
from worker.host import cpu_quota

SCHEMA: Literal["llorch-worker/device-check/2"] = "llorch-worker/device-check/2"
"""The number at its end is raised by a change that a reader of old reports would notice."""

Unit = Literal["", "tokens/s", "ms", "s", "bytes", "nats", "share"]
_TIMEOUT_S = 60.0


class DamagedReportError(Exception):
    """One line: the file, and what is wrong with it."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number that was found."""

    what: str
    """`1 stream`; the same words for the same measure of every model and device."""
    value: float
    unit: Unit = ""
    model: str = ""
    """File name; empty for what is of no model."""
    at_most: float | None = None
    """The bound; a number without a bound is reported, not judged."""
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """A value that is not finite keeps no bound."""
        low = -inf if self.at_least is None else self.at_least
        high = inf if self.at_most is None else self.at_most
        return self.at_least is self.at_most is None or (isfinite(self.value) and low <= self.value <= high)

    @property
    def bound(self) -> str:
        """`≤ 0.02`; empty without one."""
        bounds = (("≥", self.at_least), ("≤", self.at_most))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in bounds if limit is not None)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a complete step."""

    summary: str
    """One line."""
    figures: tuple[Figure, ...] = ()
    failures: tuple[str, ...] = ()
    """A line for each thing that does not hold; a step with one has failed, and keeps its figures."""


class Step(Found, frozen=True, kw_only=True):
    """One step's end, the last one where it ran several times. Its summary says why it ended without results."""

    name: str
    outcome: Literal["passed", "failed"]
    seconds: float
    """The wall time, including the start of its processes."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """The first one, as nvidia-smi reports it; empty strings and 0 for missing values."""

    name: str = ""
    driver: str = ""
    compute_capability: str = ""
    """`9.0`."""
    memory_bytes: int = 0
    toolkit: str = ""
    """The version of nvcc: `13.0`; empty without nvcc, e.g. if the wheel was built elsewhere."""


class Report(msgspec.Struct, kw_only=True):
    """A round. Steps are in the order in which they are run."""

    schema: Literal["llorch-worker/device-check/2"] = SCHEMA
    device: str
    """The device from `--device`."""
    created: str
    """RFC 3339, UTC."""
    commit: str
    """The commit of the checkout; empty outside a checkout."""
    wheel: str = ""
    """SHA-256 of the build of llama.cpp; empty where the interpreter had one installed."""
    is_small: bool
    """A trial of the round itself, whose speeds mean nothing."""
    machine: Machine
    gpu: Gpu
    versions: dict[str, str]
    steps: list[Step] = []

    @classmethod
    def new(cls, device: str, *, is_small: bool, wheel: Path | None = None) -> Self:
        """A report without steps, of this machine and this moment. `wheel`: what llama.cpp was installed from."""
        asked = "--query-gpu=name,driver_version,compute_cap,memory.total"
        return cls(
            device=device,
            created=now_rfc3339(),
            commit=_said("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD").strip(),
            wheel=hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel else "",
            is_small=is_small,
            machine=this_machine(cpu_quota()),
            gpu=parse_gpu(_said("nvidia-smi", asked, "--format=csv,noheader,nounits"), _said("nvcc", "--version")),
            versions=versions(),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises: OSError; DamagedReportError for a file that is no report of this version."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise DamagedReportError(f"{path} is not a report of {SCHEMA}: {error}") from None

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        staged = path.with_suffix(".new")
        staged.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        staged.replace(path)

    def keep(self, step: Step, order: tuple[str, ...]) -> None:
        """Put a step's end in its place, instead of an earlier one of the same name."""
        others = [other for other in self.steps if other.name != step.name]
        self.steps = sorted([*others, step], key=lambda one: order.index(one.name))

    def is_same_round(self, other: "Report") -> bool:
        """True if both rounds have the same subject, so that one may continue the other."""
        mine, yours = (msgspec.structs.replace(one, created="", steps=[]) for one in (self, other))
        return mine == yours

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if step.outcome == "failed"]


def parse_gpu(smi: str, nvcc: str) -> Gpu:
    """The GPU from the output of nvidia-smi and nvcc; "" for a missing one. A GPU that reports no memory has 0
    bytes."""
    release = re.search(r"release ([\d.]+)", nvcc)
    toolkit = release[1] if release else ""
    values = [value.strip() for value in smi.partition("\n")[0].split(",")]
    if len(values) != 4:
        return Gpu(toolkit=toolkit)
    name, driver, capability, memory_mib = values
    memory_bytes = int(memory_mib) * 2**20 if memory_mib.isdecimal() else 0
    return Gpu(name=name, driver=driver, compute_capability=capability, memory_bytes=memory_bytes, toolkit=toolkit)


def _said(program: str, *arguments: str) -> str:
    """The output of the command; "" if it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        run = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout if run.returncode == 0 else ""


# ── its page ─────────────────────────────────────────────────────────────────────────────────────


def page(report: Report) -> str:
    """Circumstances, steps, what does not hold, and each step's numbers, in Markdown; ends with a line feed."""
    rows = [(step.name, step.outcome, f"{step.seconds:.0f} s", step.summary) for step in report.steps]
    blocks = ["\n".join(f"- {line}" for line in _about(report)), table(("step", "", ">time", "found"), rows)]
    for step in report.failures:
        if step.failures:
            blocks.append("\n".join([f"`{step.name}` failed:", "", *(f"- {failure}" for failure in step.failures)]))
    for step in report.steps:
        if step.figures:
            blocks += [f"## {step.name}", table(("model", "", ">found", "bound", ""), map(_row, step.figures))]
    return "\n\n".join(blocks) + "\n"


def _about(report: Report) -> Iterator[str]:
    gpu, machine = report.gpu, report.machine
    yield f"device: `{report.device}`"
    if gpu.name:
        yield f"GPU: {gpu.name}, {_amount(gpu.memory_bytes, 'bytes')}, driver {gpu.driver}"
        yield f"compute capability {gpu.compute_capability}"
    if gpu.toolkit:
        yield f"CUDA toolkit {gpu.toolkit}"
    yield f"processor: {machine.cpu}, {machine.n_usable} of {machine.n_cores} threads"
    yield f"{machine.system}; {', '.join(f'{name} {version}' for name, version in report.versions.items())}"
    yield f"commit {report.commit[:12] or 'unknown'}, {report.created}"
    if report.is_small:
        yield "a trial of the round with tiny sizes: its speeds mean nothing"


def _row(figure: Figure) -> tuple[str, ...]:
    verdict = "" if not figure.bound else "holds" if figure.holds else "MISSED"
    return (figure.model, figure.what, _amount(figure.value, figure.unit), figure.bound, verdict)


def _amount(value: float, unit: Unit) -> str:
    number, name = (value / 1e6, "MB") if unit == "bytes" else (value, "" if unit == "share" else unit)
    return f"{number:.0f} {name}".strip() if abs(number) >= 1000 else f"{number:.4g} {name}".strip()
