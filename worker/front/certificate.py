"""The parity certificate: what a report of `llorch-worker parity` says about the model file that is served.

Owns: the few facts of a report.json that the front repeats, and whether they are about this file.
Refuses to know: how parity is measured, and that its bounds were sensible; the report itself has both.
Runs in the front before the model is loaded; the digest is made in a thread.
"""

import asyncio
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from worker.errors import CertificateRefused
from worker.model.catalog import Sha256
from worker.model.info import ModelInfo
from worker.protocol.bodies import ParityBody, ParityVerdict

REPORT_FORMAT: Final = "llorch-parity-report/1"
REPORT_FILE: Final = "report.json"
"""Its name in a proof bundle."""

_OF_OTHER_FILES = {"sources", "matrix"}
"""Levels that measure what was made from the file; alone they say nothing about the file."""
_MAX_REPORT_BYTES = 64 << 20
"""A hundred times a report of all levels. Whoever names the model by mistake is told so at once."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Certificate:
    """A report that passed, as `read_certificate` found it. Whether it is about this model, `check` finds out."""

    model_sha256: str
    model_file: str
    """The file's name without its folder."""
    run_id: str
    date: str
    """RFC 3339."""
    verdict: ParityVerdict
    levels: Mapping[str, ParityVerdict]
    bounds: str
    """Whose bounds were used: `built in`, or the name of the user's file."""

    @property
    def body(self) -> ParityBody:
        """The certificate's part of `/health`."""
        return ParityBody(
            model_sha256=self.model_sha256,
            verdict=self.verdict,
            levels=dict(self.levels),
            date=self.date,
            run_id=self.run_id,
            bounds=self.bounds,
        )

    async def check(self, info: ModelInfo) -> None:
        """Read the whole model file and compare digests; when cancelled the reading ends too.

        Raises: CertificateRefused for another file, and for a model of several parts.
        """
        if len(info.part_paths) > 1:
            raise CertificateRefused(
                f"{info.path.name} is one of {len(info.part_paths)} parts, and a parity report speaks for a single "
                "file: merge the parts and make a report of the whole, or leave --parity-report out"
            )
        digest = await _sha256_off_the_loop(info.path)
        if digest != self.model_sha256:
            raise CertificateRefused(
                f"the parity report is about {self.model_file} with sha256 {self.model_sha256[:16]}…, and "
                f"{info.path.name} has {digest[:16]}…: make one with `llorch-worker parity run`, or leave it out"
            )


class _Model(msgspec.Struct, frozen=True):
    file: str
    sha256: Sha256


class _Bounds(msgspec.Struct, frozen=True):
    name: str


class _Level(msgspec.Struct, frozen=True):
    name: str
    verdict: ParityVerdict


class _Report(msgspec.Struct, frozen=True):
    """The keys of report.json that matter here; worker/parity/report.py has all of them."""

    format: str
    run_id: str
    created: str
    verdict: ParityVerdict
    model: _Model
    bounds: _Bounds
    levels: tuple[_Level, ...]


def read_certificate(path: Path) -> Certificate:
    """What the report at `path` certifies; a proof bundle's folder stands for the report in it.

    Raises: CertificateRefused where there is no report, and where it did not pass.
    """
    report = _read(path)
    failed = [level.name for level in report.levels if level.verdict == "fail"]
    passed = {level.name for level in report.levels if level.verdict == "pass"}
    if report.verdict != "pass" or failed:
        where = f" at level {failed[0]}" if failed else ""
        raise CertificateRefused(
            f"the parity report {path} says {'fail' if failed else report.verdict}{where}: only one that passed is a "
            "certificate"
        )
    if passed <= _OF_OTHER_FILES:
        raise CertificateRefused(f"the parity report {path} compared nothing of the model file itself")
    return Certificate(
        model_sha256=report.model.sha256,
        model_file=report.model.file,
        run_id=report.run_id,
        date=report.created,
        verdict=report.verdict,
        levels={level.name: level.verdict for level in report.levels},
        bounds=report.bounds.name,
    )


def _read(path: Path) -> _Report:
    try:
        if path.is_dir():
            path /= REPORT_FILE
        # Asked before opening, which would wait for ever on a named pipe.
        if path.exists() and not path.is_file():
            raise CertificateRefused(f"the parity report {path} is not a regular file")
        n_bytes = path.stat().st_size
        if n_bytes > _MAX_REPORT_BYTES:
            raise CertificateRefused(
                f"{path} has {n_bytes} bytes and a parity report at most {_MAX_REPORT_BYTES}: name its {REPORT_FILE}"
            )
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except OSError as error:
        raise CertificateRefused(f"the parity report {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CertificateRefused(f"{path} is not the {REPORT_FILE} of a parity run: {error}") from None
    if report.format != REPORT_FORMAT:
        raise CertificateRefused(f"{path} has the format {report.format[:64]!r}; this worker reads {REPORT_FORMAT!r}")
    return report


async def _sha256_off_the_loop(path: Path) -> str:
    is_cancelled = threading.Event()
    try:
        return await asyncio.to_thread(_sha256, path, is_cancelled)
    except OSError as error:
        raise CertificateRefused(f"{path} cannot be read for its digest: {error.strerror}") from None
    finally:
        is_cancelled.set()


def _sha256(path: Path, is_cancelled: threading.Event) -> str:
    """Read in chunks, so that a stop need not wait for the end of a large file; the digest is then of no use."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while not is_cancelled.is_set() and (chunk := file.read(_CHUNK_BYTES)):
            digest.update(chunk)
    return digest.hexdigest()
