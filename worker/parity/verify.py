"""Is a proof bundle what its run wrote? Digests, completeness, headers; and of a parity run, every verdict again.

Reads only; believes nothing. It finds what was changed, lost or added. It cannot find out a bundle that was made up
as a whole with all its digests: these are no signatures.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from worker.errors import UsageError
from worker.front.certificate import REPORT_FILE
from worker.model.catalog import Sha256
from worker.parity.bundle import COMMON, LINES_HEADER, MANIFEST, MARKDOWN_HEADER, BundleType, is_safe
from worker.parity.proof import REPORT_TEXT
from worker.parity.report import contradictions, from_json

_OF_PARITY = (REPORT_FILE, REPORT_TEXT)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: Sha256
    size_bytes: Annotated[int, Meta(ge=0)]


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    generated_by: str
    type: BundleType
    run_id: str
    files: dict[str, _Entry]


def verify(folder: Path) -> list[str]:
    """What is wrong with the bundle, a line each; empty for a good one, whatever its verdict.

    Raises: UsageError where there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name the run's folder, which holds {MANIFEST}")
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
    except OSError as error:
        return [f"{MANIFEST} cannot be read ({error.strerror}): the bundle is not whole"]
    except ValueError as error:
        return [f"{MANIFEST} is not a manifest: {error}"]
    unsafe = [name for name in manifest.files if not is_safe(name)]
    if unsafe:
        return [f"{MANIFEST} names {unsafe[0]!r}, which is no file of a bundle"]
    return [
        *_files(folder, manifest),
        *_headers(folder, manifest),
        *_run_ids(folder, manifest),
        *_verdicts(folder, manifest),
    ]


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _files(folder: Path, manifest: _Manifest) -> Iterator[str]:
    present = set(_present(folder))
    needed = {*COMMON, *(_OF_PARITY if manifest.type == "parity" else ())}
    for name in sorted(needed - manifest.files.keys()):
        yield f"{name} is not in {MANIFEST}, and a bundle of type {manifest.type} has one"
    for name in sorted(present - manifest.files.keys() - {MANIFEST}):
        yield f"{name} is not in {MANIFEST}: it was added"
    for name, entry in sorted(manifest.files.items()):
        if name not in present:
            yield f"{name} is missing"
        else:
            yield from _digest(folder / name, name, entry)


def _present(folder: Path) -> Iterator[str]:
    """Names as the manifest has them. Links count as files and are not followed."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        yield from ((here / name).relative_to(folder).as_posix() for name in [*names, *links])


def _digest(path: Path, name: str, entry: _Entry) -> Iterator[str]:
    if path.is_symlink() or not path.is_file():
        yield f"{name} is no regular file"
        return
    data = path.read_bytes()
    if len(data) != entry.size_bytes:
        yield f"{name} has {len(data)} bytes; {MANIFEST} says {entry.size_bytes}"
    elif hashlib.sha256(data).hexdigest() != entry.sha256:
        yield f"{name} was changed: its sha256 is not the one in {MANIFEST}"


# ── what the files say ───────────────────────────────────────────────────────────────────────────


def _headers(folder: Path, manifest: _Manifest) -> Iterator[str]:
    for name in sorted(manifest.files):
        data = _read(folder / name)
        if data is None:
            continue
        if name.endswith((".md", ".csv")) and not data.startswith(f"{MARKDOWN_HEADER}\n".encode()):
            yield f"{name} does not begin with {MARKDOWN_HEADER!r}"
        elif name.endswith(".ndjson") and _json(data.partition(b"\n")[0]) != LINES_HEADER:
            yield f"{name} does not begin with the record of a generated file"
        elif name.endswith(".json") and "generated_by" not in _object(data):
            yield f"{name} does not say what generated it"


def _run_ids(folder: Path, manifest: _Manifest) -> Iterator[str]:
    for name in ("metadata.json", *((REPORT_FILE,) if manifest.type == "parity" else ())):
        found = _object(_read(folder / name) or b"").get("run_id")
        if found != manifest.run_id:
            yield f"{name} is of run {found!r}; {MANIFEST} of {manifest.run_id!r}"


def _verdicts(folder: Path, manifest: _Manifest) -> Iterator[str]:
    data = _read(folder / REPORT_FILE)
    if manifest.type != "parity" or data is None:
        return
    try:
        report = from_json(data)
    except ValueError as error:
        yield f"{REPORT_FILE} is not a report: {error}"
        return
    yield from (f"{REPORT_FILE}: {problem}" for problem in contradictions(report))
    found = _object(_read(folder / "metadata.json") or b"").get("verdict")
    if found != report.verdict:
        yield f"metadata.json says {found!r}; {REPORT_FILE} {report.verdict!r}"


def _read(path: Path) -> bytes | None:
    """None for what `_files` has already named."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _object(data: bytes) -> dict[str, Any]:
    found = _json(data)
    return found if isinstance(found, dict) else {}


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return None
