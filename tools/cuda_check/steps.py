"""The steps of a round. Each runs in a process of its own, so that a crash of one is one step's failure.

Owns the steps' names, their order and what each says. Refuses to know processes and the report's file (runs.py).
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import msgspec

from tools import CHECKOUT
from tools.cuda_check import speed
from tools.cuda_check.report import Figure
from tools.cuda_check.same_numbers import compare
from tools.made_model import Q4_1, Q8_0, SHAPES, made_model
from worker.commands.places import present
from worker.config.settings import Settings
from worker.llama.devices import devices
from worker.plan.devices import choose_device

CPU = "cpu"
STREAMS = (1, 8, speed.N_STREAMS)
"""The streams of the step `steps`."""
_SHOWN_OF_PYTEST = 3
_CONTROL_LAYERS = 12
"""Enough for errors to add up, few enough for a file that is written in seconds."""


class StepFailedError(Exception):
    """A step's end in one line: what does not hold, or what is missing."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a round, which the steps' processes get."""

    device: str
    work: str
    """A folder for the made models, which are kept."""
    model: str | None = None
    """The small one; None: the catalogue's default."""
    shape: str = "llama-2-7b"
    """The shape of the large model."""
    is_small: bool = False
    """Tiny sizes, to try the round itself."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a complete step."""

    summary: str
    figures: tuple[Figure, ...] = ()


def device(asked: Asked) -> Found:
    """Is the device there? Raises: ModelLoadFailed, naming what is."""
    one = choose_device(asked.device, devices())
    return Found(
        summary=f"{one.name}: {one.description}",
        figures=(
            Figure(what="memory", value=one.total_bytes, unit="bytes", device=asked.device),
            Figure(what="free memory", value=one.free_bytes, unit="bytes", device=asked.device),
        ),
    )


def tests(asked: Asked) -> Found:
    """The tests of GPUs, of which one must have run. Raises: StepFailedError."""
    with TemporaryDirectory(prefix="llorch-check-") as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        subprocess.run([*command, "tests/backends/test_gpu.py"], cwd=CHECKOUT, check=False)
        if not results.is_file():
            raise StepFailedError("pytest could not run: see the step's log")
        return read_results(results.read_text(), asked.device.partition(":")[0])


def read_results(junit: str, backend: str) -> Found:
    """The results in pytest's JUnit file. Raises: StepFailedError if a test failed, or if no test for GPUs ran."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))  # noqa: S314 - written by our own pytest just now
    failed = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    passed = [_name(case) for case in cases if _name(case) not in failed and case.find("skipped") is None]
    if failed:
        raise StepFailedError(f"{len(failed)} of {len(cases)} failed: {', '.join(failed[:_SHOWN_OF_PYTEST])}")
    of_it = [name for name in passed if name.endswith(f"[{backend}]")]
    if not of_it and backend != CPU:
        raise StepFailedError(f"none of {len(cases)} tests ran on {backend}")
    return Found(
        summary=f"{len(passed)} passed, {len(of_it)} of them on {backend}; {len(cases) - len(passed)} skipped",
        figures=(Figure(what="tests passed", value=len(passed), device=backend),),
    )


def _name(case: "ElementTree.Element[str]") -> str:
    return case.get("name", "")


def parity(asked: Asked) -> Found:
    """The same tokens on the CPU and on the device. Raises: StepFailedError where a bound is not kept."""
    return _judged(compare(_small_model(asked), asked.device, n_tokens=64 if asked.is_small else 1024))


def control(asked: Asked) -> Found:
    """The same with random weights, in a type whose sums a GPU rounds as the CPU does, and in one where it does not.
    Raises: StepFailedError where a bound is not kept.
    """
    shape = replace(SHAPES["tiny"] if asked.is_small else SHAPES["smollm2-135m"], n_layers=_CONTROL_LAYERS)
    models = [
        made_model(Path(asked.work), replace(shape, name=f"control-{shape.name}", type_id=type_id))
        for type_id in (Q8_0, Q4_1)
    ]
    n_tokens = 64 if asked.is_small else 256
    return _judged([figure for model in models for figure in compare(model, asked.device, n_tokens=n_tokens)])


def _judged(figures: Sequence[Figure]) -> Found:
    """Raises: StepFailedError where a bound is not kept."""
    broken = [f"{figure.what}: {figure.value:.3g}, {figure.bound} is allowed" for figure in figures if not figure.holds]
    if broken:
        raise StepFailedError("; ".join(broken))
    return Found(summary=f"{figures[0].what}: {figures[0].value:.2g}, {figures[0].bound}", figures=tuple(figures))


def small(asked: Asked) -> Found:
    """The small model on the device."""
    return _speed(_small_model(asked), asked.device, speed.SMALL if asked.is_small else speed.USUAL)


def small_cpu(asked: Asked) -> Found:
    """The small model on the CPU beside it."""
    return _speed(_small_model(asked), CPU, speed.SMALL if asked.is_small else speed.USUAL)


def make(asked: Asked) -> Found:
    """The large model's file."""
    began_s = time.monotonic()
    path = made_model(Path(asked.work), SHAPES[asked.shape])
    n_bytes = path.stat().st_size
    return Found(
        summary=f"{path.name}: {n_bytes / 1e9:.2f} GB in {time.monotonic() - began_s:.0f} s",
        figures=(Figure(what="file", value=n_bytes, unit="bytes", model=path.name),),
    )


def large(asked: Asked) -> Found:
    """The large model on the device."""
    return _speed(_large_model(asked), asked.device, speed.SMALL if asked.is_small else speed.USUAL)


def steps(asked: Asked) -> Found:
    """Time a decode step of either model on the device, and the part of it within llama_decode."""
    figures = [
        figure
        for model in (_small_model(asked), _large_model(asked))
        for n_streams in (STREAMS[:1] if asked.is_small else STREAMS)
        for figure in speed.step_figures(model, asked.device, n_streams, n_rounds=1 if asked.is_small else 5)
    ]
    return Found(summary=_summary(figures), figures=tuple(figures))


def large_cpu(asked: Asked) -> Found:
    """The large model on the CPU: fewer tokens, since each takes long."""
    return _speed(_large_model(asked), CPU, speed.SMALL if asked.is_small else speed.LARGE)


STEPS: Mapping[str, Callable[[Asked], Found]] = {
    "device": device,
    "tests": tests,
    "parity": parity,
    "control": control,
    "small": small,
    "small-cpu": small_cpu,
    "make": make,
    "large": large,
    "steps": steps,
    "large-cpu": large_cpu,
}
"""The steps in the order in which they run; the first one is needed by all others."""


def _speed(model: Path, device: str, load: speed.Load) -> Found:
    figures = speed.measure(model, device, load)
    return Found(summary=_summary(figures), figures=tuple(figures))


def _summary(figures: Sequence[Figure]) -> str:
    return "; ".join(f"{figure.what} {figure.value:.4g} {figure.unit}" for figure in figures)


def _small_model(asked: Asked) -> Path:
    """Raises: ModelNotFound."""
    return present(asked.model, Settings().models_dir, None)


def _large_model(asked: Asked) -> Path:
    """Raises: StepFailedError: making it takes long enough to be a step of its own."""
    path = Path(asked.work) / SHAPES[asked.shape].file_name
    if not path.is_file():
        raise StepFailedError(f"{path.name} is not there: run the step `make` first")
    return path
