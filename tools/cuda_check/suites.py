"""The project's tests on a device: those of GPUs, or the whole of `make test`, and the outcome of each."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from tools import CHECKOUT

_OF_GPUS = "tests/backends"
_PREPARED = (".venv/installed", ".venv/installed-dev")
"""The targets of the Makefile that are not made: the round's own environment takes their place."""


@dataclass(frozen=True, slots=True)
class Results:
    """The names of a suite's tests by their outcome, in its order: `tests.backends.test_gpu::test_x[cuda]`."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    n_skipped: int

    @property
    def n_all(self) -> int:
        return len(self.passed) + len(self.failed) + self.n_skipped

    def n_passed_on(self, backend: str) -> int:
        """The number of tests that passed and are of this backend alone."""
        return sum(name.endswith(f"[{backend}]") for name in self.passed)


def of_gpus() -> tuple[str | None, int]:
    """The JUnit file of the tests of GPUs and the exit code; None if pytest could not run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _OF_GPUS]
    return _junit_of(command, {})


def whole(backend: str) -> tuple[str | None, int]:
    """The JUnit file of `make test` with the tests' workers on the backend and the exit code; None if it could not
    run."""
    kept = [option for target in _PREPARED for option in ("--old-file", target)]
    command = ["make", *kept, f"BIN={Path(sys.executable).parent}", "test"]
    return _junit_of(command, {"LLORCH_TEST_BACKEND": backend})


def read(junit: str) -> Results:
    """The results in pytest's JUnit file."""
    passed, failed, n_skipped = [], [], 0
    for case in ElementTree.fromstring(junit).iter("testcase"):  # noqa: S314 - written by our own pytest just now
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        # An error of the set-up and one of the end are elements of their own.
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            n_skipped += 1
        else:
            passed.append(name)
    return Results(tuple(passed), tuple(failed), n_skipped)


def _junit_of(command: list[str], environment: dict[str, str]) -> tuple[str | None, int]:
    with TemporaryDirectory(prefix="llorch-check-") as folder:
        results = Path(folder) / "results.xml"
        options = " ".join(filter(None, [os.environ.get("PYTEST_ADDOPTS"), f"--junitxml={results}"]))
        variables = {**os.environ, **environment, "PYTEST_ADDOPTS": options}
        code = subprocess.run(command, cwd=CHECKOUT, env=variables, check=False).returncode
        return (results.read_text() if results.is_file() else None), code
