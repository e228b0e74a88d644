"""The directory of --prefix-cache-dir, in which saved cells outlive the worker, one file each.

Saved cells are what prompts were, and a model continues from them as they are. So no other user may write here, and
each file carries a code that only the key's holder can make (records.py).

A file appears under its name whole, by a rename. It is not synced: after a power cut its code is wrong or it is not
there, and either costs a prefill; a sync would cost each write, and every other program on that disk. Workers may share
a directory: the one that writes holds a lock, and makes room for it by removing the oldest files of all. Each reads
the files of its own model and settings, and leaves those of others alone.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.errors import UsageError
from worker.server.saved.records import Buffer

KEY_BYTES = 32
_KEY_NAME = "key"
_SUFFIX, _UNFINISHED = ".kv", ".kv-part"


def prepare_directory(directory: Path) -> None:
    """Make the directory and its key where they are missing. Raises: UsageError for one that cannot be used."""
    flag = f"--prefix-cache-dir {directory}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if found.st_uid != os.geteuid():
            raise UsageError(
                f"{flag} belongs to user {found.st_uid}, not to {os.geteuid()}: give a directory of your own"
            )
        if found.st_mode & stat.S_IWOTH:
            raise UsageError(f"{flag} is writable by every user: chmod o-w, or give another directory")
        _make_key(directory)
        read_key(directory)
    except OSError as error:
        raise UsageError(f"{flag} cannot be used: {error.filename or directory}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def key_path(directory: Path) -> Path:
    """The file with the key; the worker that has it locked is the one that writes."""
    return directory / _KEY_NAME


def read_key(directory: Path) -> bytes:
    """Raises: OSError. ValueError for a file that is no key, or one that others can read or replace."""
    path = key_path(directory)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found, key = os.fstat(fd), os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if not stat.S_ISREG(found.st_mode) or len(key) != KEY_BYTES:
        raise ValueError(f"{path} is not a key of {KEY_BYTES} bytes: remove it, and a new key and cache are made")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} must belong to its owner alone: chmod 600, or remove it")
    return key


def _make_key(directory: Path) -> None:
    """A fresh key, unless there is one: under its name it is whole, and of two workers that begin at once one wins.

    It is made each time, so that a directory that cannot be written is found out now.
    """
    fresh = directory / f"{_KEY_NAME}-{secrets.token_hex(8)}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, key_path(directory))
    finally:
        fresh.unlink(missing_ok=True)


# ── the files ────────────────────────────────────────────────────────────────────────────────────


class CacheFiles:
    """The files of one binding in a directory that holds at most `limit_bytes` of all bindings' files."""

    def __init__(self, directory: Path, binding: bytes, limit_bytes: int) -> None:
        self._directory = directory
        self._prefix = f"{binding.hex()[:16]}-"
        self._limit_bytes = limit_bytes

    def name(self, code: bytes) -> str:
        """The file of the record with that code."""
        return f"{self._prefix}{code.hex()}{_SUFFIX}"

    def names(self) -> list[str]:
        """Our own, the newest first, as many as the limit has room for. Raises: OSError."""
        ours, n_left = [], self._limit_bytes
        for path, found in reversed(self._oldest_first()):
            if path.name.startswith(self._prefix):
                n_left -= found.st_size
                if n_left < 0:
                    break
                ours.append(path.name)
        return ours

    def read(self, name: str) -> bytes:
        """Return the file, or one byte more than the limit if it is too large. Raises: OSError."""
        fd = os.open(self._directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(self._limit_bytes + 1)

    def write(self, name: str, data: Buffer) -> None:
        """Whole or not at all. What is larger than the limit is not written. Raises: OSError."""
        if len(data) > self._limit_bytes:
            return
        with self._locked():
            self._make_room(len(data))
            unfinished = (self._directory / name).with_suffix(_UNFINISHED)
            fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(fd, "wb", buffering=0) as file:
                    left = memoryview(data)
                    while left:
                        left = left[file.write(left) :]
                unfinished.replace(self._directory / name)
            finally:
                unfinished.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Idempotent; a file that cannot be removed is as good as none, because its like will be found wrong again."""
        with suppress(OSError):
            (self._directory / name).unlink()

    def _make_room(self, n_bytes: int) -> None:
        """Remove what a writer before us has left unfinished, and the oldest files until there is room."""
        for unfinished in self._directory.glob(f"*{_UNFINISHED}"):
            unfinished.unlink(missing_ok=True)
        files = self._oldest_first()
        n_more = sum(found.st_size for _, found in files) + n_bytes - self._limit_bytes
        for path, found in files:
            if n_more <= 0:
                return
            path.unlink(missing_ok=True)
            n_more -= found.st_size

    def _oldest_first(self) -> list[tuple[Path, os.stat_result]]:
        files = []
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # another worker's has just gone
                found = path.stat(follow_symlinks=False)
                if path.suffix == _SUFFIX and stat.S_ISREG(found.st_mode):
                    files.append((path, found))
        return sorted(files, key=lambda file: file[1].st_mtime_ns)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, of all workers; the lock goes with the process that has it."""
        with key_path(self._directory).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
