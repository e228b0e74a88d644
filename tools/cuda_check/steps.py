"""The steps of a round. Each runs in a process of its own, so that a crash of one is one step's failure."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from client.child import Child, without_settings
from client.worker import connect
from parity.bundle import verify
from parity.provenance import new_run_id
from parity.report import Report, from_json
from tools import CHECKOUT
from tools.cuda_check import probe as probes
from tools.cuda_check import served as rounds
from tools.cuda_check.report import Figure, Found
from tools.cuda_check.same_numbers import GOLDEN, compare, is_golden
from tools.made_model import Q4_1, Q8_0, SHAPES, made_model
from worker.commands.places import present
from worker.config.settings import Settings
from worker.llama.devices import devices
from worker.models.plan.devices import choose_device
from worker.server.front.certificate import REPORT_FILE

CPU = "cpu"
_CONTROL_LAYERS = 12
"""Enough for errors to add up, few enough for a file that is written in seconds."""


class StepFailedError(Exception):
    """A step's end in one line: what does not hold, or what is missing."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a round, which the steps' processes get."""

    device: str
    work: str
    """A folder for the made models, which are kept."""
    out: str
    """A folder for a step's own files: the bench's reports, the proof bundle, the probe's figures as they are found."""
    tools: str | None = None
    """The folder of llama-server, llama-bench and llama-batched-bench."""
    model: str | None = None
    """The small one; None: the catalogue's default."""
    shape: str = "llama-2-7b"
    """The shape of the large model."""
    is_small: bool = False
    """Tiny sizes, to try the round itself."""


def device(asked: Asked) -> Found:
    """Is the device there? Raises: ModelLoadFailed, naming what is."""
    one = choose_device(asked.device, devices())
    return Found(
        summary=f"{one.name}: {one.description}",
        figures=(
            Figure(what="memory", value=one.total_bytes, unit="bytes"),
            Figure(what="free memory", value=one.free_bytes, unit="bytes"),
        ),
    )


def tests(asked: Asked) -> Found:
    """The tests of GPUs, of which one must have run. Raises: StepFailedError."""
    with TemporaryDirectory(prefix="llorch-check-") as folder:
        junit = Path(folder) / "results.xml"
        options = ("-q", "-p", "no:cacheprovider", f"--junitxml={junit}", "tests/backends")
        code = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=CHECKOUT, check=False).returncode
        return of_suite(junit.read_text() if junit.is_file() else None, code, asked.device.partition(":")[0])


def of_suite(junit: str | None, code: int, backend: str) -> Found:
    """The step of a suite by its JUnit file and exit code; None is a suite that did not run.

    Raises: StepFailedError for that, for a suite that broke off, and if no test passed that is of the backend.
    """
    if junit is None:
        raise StepFailedError("the tests could not run: see the step's log")
    names: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.fromstring(junit).iter("testcase"):  # noqa: S314 - written by our own pytest just now
        # An error of the set-up and one of the end are elements of their own.
        tags = {element.tag for element in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        names[outcome].append(f"{case.get('classname', '')}::{case.get('name', '')}")
    n_passed, n_failed, n_skipped = map(len, names.values())
    if code and not n_failed:
        raise StepFailedError(f"no test failed, but the suite ended with {code}: see the step's log")
    n_of_it = sum(name.endswith(f"[{backend}]") for name in names["passed"])
    n_all = n_passed + n_failed + n_skipped
    if not n_of_it and not n_failed and backend != CPU:
        raise StepFailedError(f"none of {n_all} tests ran on {backend}")
    of_it = f"{n_passed} passed, {n_of_it} of them on {backend}; {n_skipped} skipped"
    return Found(
        summary=f"{n_failed} of {n_all} failed; {of_it}" if n_failed else of_it,
        figures=(
            Figure(what="tests passed", value=n_passed),
            Figure(what="tests failed", value=n_failed, at_most=0),
        ),
        failures=tuple(names["failed"]),
    )


def parity(asked: Asked) -> Found:
    """The same tokens on the CPU and on the device."""
    return _judged(compare(_small_model(asked), asked.device, n_tokens=64 if asked.is_small else 1024))


def control(asked: Asked) -> Found:
    """The same with random weights, in a type whose sums a GPU rounds as the CPU does, and in one where it does not."""
    shape = replace(SHAPES["tiny"] if asked.is_small else SHAPES["smollm2-135m"], n_layers=_CONTROL_LAYERS)
    models = [
        made_model(Path(asked.work), replace(shape, name=f"control-{shape.name}", type_id=type_id))
        for type_id in (Q8_0, Q4_1)
    ]
    n_tokens = 64 if asked.is_small else 256
    return _judged([figure for model in models for figure in compare(model, asked.device, n_tokens=n_tokens)])


def _judged(figures: Sequence[Figure]) -> Found:
    broken = [f"{figure.what}: {figure.value:.3g}, {figure.bound} is allowed" for figure in figures if not figure.holds]
    summary = f"{figures[0].what}: {figures[0].value:.2g}, {figures[0].bound}"
    return Found(summary="; ".join(broken) or summary, figures=tuple(figures), failures=tuple(broken))


def certificate(asked: Asked) -> Found:
    """A parity certificate of the small model on the device: made, verified, and held against a worker there.

    Raises: StepFailedError.
    """
    model = _small_model(asked)
    if not is_golden(model):
        raise StepFailedError(f"there are no reference logits of {model.name}: leave out --model")
    run_id, proofs = new_run_id(), Path(asked.out) / "proof_bundle"
    bundle = proofs / "parity" / run_id
    size = ("--tokens", "512", "--level", "logits") if asked.is_small else ("--tokens", "1024")
    command = [
        *(sys.executable, "-m", "worker", "parity", "run", "--model", str(model), "--device", asked.device),
        *("--reference", str(GOLDEN), "--proof-dir", str(proofs), "--run-id", run_id, *size),
    ]
    ended = subprocess.run(command, cwd=CHECKOUT, env=without_settings(), check=False)
    if not (bundle / REPORT_FILE).is_file():
        raise StepFailedError(f"parity run ended with {ended.returncode} and without a report: see the step's log")
    report = from_json((bundle / REPORT_FILE).read_bytes())
    failures = list(uncertified(report, bundle))
    if not failures:
        failures = [f"a worker is not covered: {one}" for one in uncovered(model, asked.device, bundle)]
    passed = ", ".join(level.name for level in report.levels if level.verdict == "pass") or "no level"
    return Found(
        summary=f"passed: {passed}; it covers {'not all that' if failures else 'exactly what'} a worker runs there",
        figures=tuple(certified(report)),
        failures=tuple(failures),
    )


def certified(report: Report) -> list[Figure]:
    """Every number that the report judged, with its bound. JSON has no form for one that is not finite; its level has
    failed."""
    return [
        Figure(
            what=f"{level.name}: {check.name}",
            value=check.value,
            model=report.model.file,
            at_most=check.bound if check.relation == "at most" else None,
            at_least=check.bound if check.relation == "at least" else None,
        )
        for level in report.levels
        for check in level.checks
        if isfinite(check.value)
    ]


def uncertified(report: Report, bundle: Path) -> Iterator[str]:
    """A line for each level that failed, and for what is wrong with the bundle."""
    for level in report.levels:
        if level.verdict == "fail":
            yield f"level {level.name}: {level.summary}"
    yield from (f"the proof bundle: {wrong}" for wrong in verify(bundle))


def uncovered(model: Path, device: str, bundle: Path) -> list[str]:
    """The differences between the certificate and a worker on the device. Raises: NotServed."""
    flags = ("--model", str(model), "--device", device, "--port", "0", "--parity-report", str(bundle))
    with Child(*flags) as worker:
        worker.ready()
        with connect(worker.url) as client:
            parity = client.get("/health").json()["parity"]
    if parity is None:
        return ["the worker has no certificate"]
    return [] if parity["covers"] == "exact" else list(parity["differences"])


def probe(asked: Asked) -> Found:
    """Times of steps and copies with either model, without the engine; kept in a file as they are found."""
    sizes, figures = (probes.SMALL if asked.is_small else probes.USUAL), []
    with (Path(asked.out) / "probe.jsonl").open("wb", buffering=0) as kept:
        for model in (_small_model(asked), _large_model(asked)):
            for figure in probes.probe(model, asked.device, sizes):
                figures.append(figure)
                kept.write(msgspec.json.encode(figure) + b"\n")
    shown = [figure for figure in figures if figure.what in ("load", "step of 1", "step of 2", "step of 9")]
    summary = "; ".join(f"{figure.what} {figure.value:.4g} {figure.unit}" for figure in shown)
    return Found(summary=summary, figures=tuple(figures))


def served(asked: Asked) -> Found:
    """The large model over HTTP, beside the peers. Raises: StepFailedError without them."""
    return _served(asked, _large_model(asked), n_rounds=1 if asked.is_small else 2)


def served_small(asked: Asked) -> Found:
    """The small model in the same way, in one round."""
    scenarios = rounds.FEW if asked.is_small else rounds.SCENARIOS
    return _served(asked, _small_model(asked), n_rounds=1, scenarios=scenarios)


def _served(asked: Asked, model: Path, *, n_rounds: int, scenarios: tuple[str, ...] = rounds.SCENARIOS) -> Found:
    """A round with tiny sizes has no targets, because no speed means anything then."""
    if asked.tools is None:
        raise StepFailedError("there are no peers: name the folder of llama-server and its benchmarks with --tools")
    peers = Path(asked.tools)
    if missing := [name for name in rounds.PROGRAMS if not (peers / name).is_file()]:
        raise StepFailedError(f"--tools: {peers / missing[0]} is not there")
    out = Path(asked.out) / "served" / model.stem
    report = rounds.serve(model, asked.device, peers, out, n_rounds=n_rounds, scenarios=scenarios)
    targets = () if asked.is_small else rounds.TARGETS
    figures, failures = rounds.figures_of(report, targets), rounds.failures_of(report, targets)
    judged = [figure for figure in figures if figure.bound]
    n_reached = sum(figure.holds for figure in judged)
    return Found(
        summary=f"{n_reached} of {len(judged)} targets reached; {len(report.failures)} sides with failed requests",
        figures=tuple(figures),
        failures=tuple(failures),
    )


def make(asked: Asked) -> Found:
    """The large model's file."""
    began_s = time.monotonic()
    path = made_model(Path(asked.work), SHAPES[asked.shape])
    n_bytes = path.stat().st_size
    return Found(
        summary=f"{path.name}: {n_bytes / 1e9:.2f} GB in {time.monotonic() - began_s:.0f} s",
        figures=(Figure(what="file", value=n_bytes, unit="bytes", model=path.name),),
    )


class Plan(NamedTuple):
    """The place of a step in a round."""

    run: Callable[[Asked], Found]
    limit_s: float
    """The most that it may take. It is the safety stop for a device that hangs, not the expected time."""


STEPS: Mapping[str, Plan] = {
    "device": Plan(device, 60.0),
    "tests": Plan(tests, 240.0),
    "make": Plan(make, 240.0),
    "served": Plan(served, 600.0),
    "probe": Plan(probe, 240.0),
    "parity": Plan(parity, 180.0),
    "control": Plan(control, 180.0),
    "certificate": Plan(certificate, 420.0),
    "served-small": Plan(served_small, 240.0),
}
"""The steps in the order in which they run: the first one is needed by all others, `make` by those of the large model,
and what only a GPU can show comes before the rest, in case the time is short. scripts/cuda_check.sh has the time each
is expected to take."""
OF_PEERS = ("served", "served-small")
"""The steps that need llama.cpp's own servers and benchmarks."""


def _small_model(asked: Asked) -> Path:
    """Raises: ModelNotFound."""
    return present(asked.model, Settings().models_dir, None)


def _large_model(asked: Asked) -> Path:
    """Raises: StepFailedError: making it takes long enough to be a step of its own."""
    path = Path(asked.work) / SHAPES[asked.shape].file_name
    if not path.is_file():
        raise StepFailedError(f"{path.name} is not there: run the step `make` first")
    return path
