"""The parity certificate of a device: made, verified, and held against a worker on it.

`llorch-worker parity` makes and judges it; a worker that may serve nothing without it shows that it covers what runs.
Starts both as child processes.
"""

import subprocess
import sys
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from client.child import Child, without_settings
from client.worker import connect
from parity.bundle import verify
from parity.provenance import new_run_id
from parity.report import Report, from_json
from tools import CHECKOUT
from tools.cuda_check.report import Figure
from worker.errors import WorkerError
from worker.server.front.certificate import REPORT_FILE

N_TOKENS = 1024
SMALL_TOKENS = 512
"""The least that `parity run` takes."""


class NoReportError(WorkerError):
    """One line: `parity run` ended without a report."""


def make(model: Path, device: str, reference: Path, proofs: Path, *, is_small: bool) -> tuple[Report, Path]:
    """The report of a parity run on the device, and its proof bundle; `is_small`: of the logits only.

    Raises: NoReportError.
    """
    run_id = new_run_id()
    bundle = proofs / "parity" / run_id
    levels = ("--level", "logits") if is_small else ()
    n_tokens = SMALL_TOKENS if is_small else N_TOKENS
    command = [
        *(sys.executable, "-m", "worker", "parity", "run", "--model", str(model), "--device", device),
        *("--reference", str(reference), "--proof-dir", str(proofs), "--run-id", run_id),
        *("--tokens", str(n_tokens), *levels),
    ]
    ended = subprocess.run(command, cwd=CHECKOUT, env=without_settings(), check=False)
    if not (bundle / REPORT_FILE).is_file():
        raise NoReportError(f"parity run ended with {ended.returncode} and without a report: see the step's log")
    return from_json((bundle / REPORT_FILE).read_bytes()), bundle


def figures_of(report: Report, device: str) -> list[Figure]:
    """Every number that the report judged, with its bound. JSON has no form for one that is not finite; its level has
    failed."""
    return [
        Figure(
            what=f"{level.name}: {check.name}",
            value=check.value,
            device=device,
            model=report.model.file,
            at_most=check.bound if check.relation == "at most" else None,
            at_least=check.bound if check.relation == "at least" else None,
        )
        for level in report.levels
        for check in level.checks
        if isfinite(check.value)
    ]


def failures_of(report: Report, bundle: Path) -> Iterator[str]:
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
