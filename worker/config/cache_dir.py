"""The directory of --prefix-cache-dir: whether it is fit to be trusted, and its key.

Saved cells are what prompts were, and a model goes on from them as they are. So nobody else may write here, and each
file carries a code that only the key's holder can make (llama/kv_records.py). The front checks once, before anything
runs; the engine reads the key.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from worker.errors import UsageError

KEY_BYTES = 32
_KEY_NAME = "key"


def prepare(directory: Path) -> None:
    """Make the directory and its key where they are missing. Raises: UsageError for one that cannot be used."""
    flag = f"--prefix-cache-dir {directory}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if found.st_uid != os.geteuid():
            raise UsageError(f"{flag} belongs to user {found.st_uid}, not to {os.geteuid()}: name one of your own")
        if found.st_mode & stat.S_IWOTH:
            raise UsageError(f"{flag} can be written by everybody: chmod o-w, or name another one")
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
        raise ValueError(f"{path} is no key, which has {KEY_BYTES} bytes: remove it, and what it keeps is made anew")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} must be its owner's alone: chmod 600, or remove it")
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
