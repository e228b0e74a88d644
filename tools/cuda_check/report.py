"""The report of a round: one JSON file that grows step by step, its schema and its version.

Owns the file: it is written whole after every step, so that a round that was broken off goes on where it was. Refuses
to know how anything is checked.
"""

from math import inf, isfinite
from pathlib import Path
from typing import Literal, Self

import msgspec

SCHEMA: Literal["llorch-worker/device-check/1"] = "llorch-worker/device-check/1"
"""The number at its end is raised by a change that a reader of old reports would notice."""

Outcome = Literal["passed", "failed"]
Unit = Literal["", "tokens/s", "ms", "s", "bytes", "nats", "share"]


class DamagedReportError(Exception):
    """One line: the file, and what is wrong with it."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number that was found."""

    what: str
    """`1 stream`; the same words for the same measure of every model and device."""
    value: float
    unit: Unit = ""
    device: str = ""
    """The device as for `--device`; empty for a result without a device."""
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


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step's end, the last one where it ran several times."""

    name: str
    outcome: Outcome
    seconds: float
    """The wall time, including the start of its processes."""
    summary: str
    """One line; of a failed step, why."""
    figures: tuple[Figure, ...] = ()
    """The numbers of a failed step, too, where it got to them."""
    failures: tuple[str, ...] = ()
    """A line for each thing that does not hold: a test's name, a target that is missed."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that computed. It names no person, host or folder."""

    cpu: str
    n_cores: int
    """The cores of the machine."""
    n_usable: int
    """The cores that the round could use."""
    memory_bytes: int
    """Free when the round began."""
    system: str


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

    schema: Literal["llorch-worker/device-check/1"] = SCHEMA
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

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)

    def keep(self, step: Step, order: tuple[str, ...]) -> None:
        """Put a step's end in its place, instead of an earlier one of the same name."""
        others = [other for other in self.steps if other.name != step.name]
        self.steps = sorted([*others, step], key=lambda one: order.index(one.name))

    def is_same_round(self, other: "Report") -> bool:
        """True if both rounds have the same subject, so that one may continue the other."""
        mine, yours = (
            (one.device, one.commit, one.wheel, one.is_small, one.machine.cpu, one.gpu, one.versions)
            for one in (self, other)
        )
        return mine == yours

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if step.outcome == "failed"]
