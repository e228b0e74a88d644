"""The parity certificate: the few facts of a report of `llorch-worker parity` that the front repeats, compared with the
model file and with the numerics of the current engine.

It does not know how parity is measured, or whether its bounds were sensible; the report itself has both.
"""

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from worker.apis.core.bodies import ParityBody, ParityVerdict
from worker.errors import CertificateRefused
from worker.models.downloads.catalog import Sha256
from worker.models.facts.info import ModelInfo
from worker.wire.load import Numerics

REPORT_FORMAT: Final = "llorch-parity-report/1"
REPORT_FILE: Final = "report.json"
"""Its name in a proof bundle."""

Stamp = tuple[int, int, int] | None
"""The facts that change with a file: its number, size and time of change. None for a missing file."""

_OF_OTHER_FILES = {"sources", "matrix"}
"""Levels that measure derived files; alone they say nothing about the file itself."""
_MAX_REPORT_BYTES = 64 << 20
"""A hundred times a report of all levels. It catches a model file that is given by mistake."""
_CHUNK_BYTES = 1 << 20


class _Model(msgspec.Struct, frozen=True):
    file: str
    sha256: Sha256


class _Bounds(msgspec.Struct, frozen=True):
    name: str


class _ReportLevel(msgspec.Struct, frozen=True):
    name: str
    verdict: ParityVerdict


class Certificate(msgspec.Struct, frozen=True):
    """A report that passed; `read_certificate` reads it. These are the keys of report.json that matter here;
    parity/report.py has all of them."""

    format: str
    run_id: str
    created: str
    """The date in RFC 3339."""
    verdict: ParityVerdict
    model: _Model
    bounds: _Bounds
    """The bounds that were used: `built in`, or the name of the user's file."""
    levels: tuple[_ReportLevel, ...]
    numerics: Numerics | None = None
    """The numerics of the measured model; None in an older report, and if no level computed with it."""

    async def examined(self, info: ModelInfo) -> "Examined":
        """Compare the certificate with a model file, which is read as a whole. If this is cancelled, the reading ends
        too.

        Raises: CertificateRefused for a file that cannot be read.
        """
        stamp, difference = _stamp(info.path), ""
        if len(info.part_paths) > 1:
            difference = f"it is in {len(info.part_paths)} parts here, and a report is about a single file"
        elif (digest := await _sha256(info.path)) != self.model.sha256:
            theirs = f"{self.model.sha256[:16]}… ({self.model.file})"
            difference = f"sha256 {digest[:16]}… here, {theirs} in the report"
        return Examined(self, info.path, stamp, difference)


@dataclass(frozen=True, slots=True)
class Examined:
    """A certificate and the model file that was compared with it."""

    certificate: Certificate
    path: Path
    stamp: Stamp
    """The stamp of the file when its digest was made."""
    difference: str
    """The difference between the file and the certificate's; empty if they are the same."""

    def body(self, here: Numerics | None) -> ParityBody:
        """Make the certificate's part of `/health`, compared with the numerics of the engine."""
        said, differing = self.certificate, tuple(self._differences(here))
        return ParityBody(
            model_sha256=said.model.sha256,
            verdict=said.verdict,
            levels={level.name: level.verdict for level in said.levels},
            date=said.created,
            run_id=said.run_id,
            bounds=said.bounds.name,
            covers="differs" if differing else "exact",
            differences=differing,
        )

    def check_file(self) -> None:
        """Check that the file is the certificate's. Raises: CertificateRefused if it is not."""
        if self.difference:
            raise uncovered((f"model: {self.difference}",))

    def _differences(self, here: Numerics | None) -> Iterator[str]:
        if self.difference:
            yield f"model: {self.difference}"
        elif _stamp(self.path) != self.stamp:
            yield "model: the file was changed after its digest was made"
        if here is None or self.certificate.numerics is None:
            who = "the report" if self.certificate.numerics is None else "the engine"
            yield f"numerics: {who} does not say what the model is computed with"
        else:
            yield from here.differences(self.certificate.numerics)


def uncovered(differing: Sequence[str]) -> CertificateRefused:
    """Make the error of a worker that may serve only what its report covers."""
    return CertificateRefused(
        f"--require-parity: the parity report does not cover what runs here: {'; '.join(differing)}; make one with "
        "`llorch-worker parity run` and the flags that this worker has, or remove --require-parity"
    )


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_certificate(path: Path) -> Certificate:
    """Read the certificate of the report at `path`, or of the report in a proof bundle's folder.

    Raises: CertificateRefused if there is no report, or if it did not pass.
    """
    report = _read(path)
    failed = [f" at level {level.name}" for level in report.levels if level.verdict == "fail"]
    if report.verdict != "pass" or failed:
        said = f"fail{failed[0]}" if failed else report.verdict
        raise CertificateRefused(f"the parity report {path} says {said}: only one that passed is a certificate")
    if {level.name for level in report.levels if level.verdict == "pass"} <= _OF_OTHER_FILES:
        raise CertificateRefused(f"the parity report {path} compared nothing of the model file itself")
    return report


def _read(path: Path) -> Certificate:
    try:
        path = path / REPORT_FILE if path.is_dir() else path
        # Asked before opening, which would wait for ever on a named pipe.
        if path.exists() and not path.is_file():
            raise CertificateRefused(f"the parity report {path} is not a regular file")
        n_bytes = path.stat().st_size
        if n_bytes > _MAX_REPORT_BYTES:
            raise CertificateRefused(
                f"{path} has {n_bytes} bytes and a parity report at most {_MAX_REPORT_BYTES}: name its {REPORT_FILE}"
            )
        report = msgspec.json.decode(path.read_bytes(), type=Certificate)
    except OSError as error:
        raise CertificateRefused(f"the parity report {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CertificateRefused(f"{path} is not the {REPORT_FILE} of a parity run: {error}") from None
    if report.format != REPORT_FORMAT:
        raise CertificateRefused(f"{path} has the format {report.format[:64]!r}; this worker reads {REPORT_FORMAT!r}")
    return report


async def _sha256(path: Path) -> str:
    """Return the digest of a file, which a thread reads in chunks: a stop need not wait for the end of a large file."""
    is_cancelled = threading.Event()

    def read() -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while not is_cancelled.is_set() and (chunk := file.read(_CHUNK_BYTES)):
                digest.update(chunk)
        return digest.hexdigest()

    try:
        return await asyncio.to_thread(read)
    except OSError as error:
        raise CertificateRefused(f"{path} cannot be read for its digest: {error.strerror}") from None
    finally:
        is_cancelled.set()
