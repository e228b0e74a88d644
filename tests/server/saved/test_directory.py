"""A directory that is not its owner's alone is refused before anything runs, with what to do about it."""

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.errors import UsageError
from worker.server.saved.directory import KEY_BYTES, key_path, prepare_directory, read_key


def test_the_directory_and_its_key_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    prepare_directory(folder)
    key = read_key(folder)
    assert len(key) == KEY_BYTES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(key_path(folder).stat().st_mode) == 0o600
    prepare_directory(folder)
    assert read_key(folder) == key
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_of_workers_that_begin_at_once_all_have_the_same_key(tmp_path: Path) -> None:
    start, keys = threading.Barrier(8), list[bytes]()

    def begin() -> None:
        start.wait()
        prepare_directory(tmp_path)
        keys.append(read_key(tmp_path))

    beginners = [threading.Thread(target=begin) for _ in range(8)]
    for beginner in beginners:
        beginner.start()
    for beginner in beginners:
        beginner.join()
    assert (len(keys), len(set(keys))) == (8, 1)


def a_file(folder: Path) -> None:
    folder.write_text("")


def below_a_file(folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.write_text("")


def everybodys(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def short_key(folder: Path) -> None:
    prepare_directory(folder)
    key_path(folder).write_bytes(b"short")


def open_key(folder: Path) -> None:
    prepare_directory(folder)
    key_path(folder).chmod(0o644)


def linked_key(folder: Path) -> None:
    prepare_directory(folder)
    key_path(folder).rename(folder.parent / "elsewhere")
    key_path(folder).symlink_to(folder.parent / "elsewhere")


def key_of_a_pipe(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(key_path(folder), 0o600)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (a_file, "cannot be used: .*File exists"),
        (below_a_file, "cannot be used: .*Not a directory"),
        (everybodys, "is writable by every user: chmod o-w"),
        (short_key, "is not a key of 32 bytes: remove it"),
        (open_key, "must belong to its owner alone: chmod 600"),
        (linked_key, "cannot be used: .*key: "),
        (key_of_a_pipe, "is not a key"),
    ],
)
def test_what_is_wrong_is_said_with_the_flag_and_a_way_out(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "parent" / "cache"
    folder.parent.mkdir()
    spoil(folder)
    with pytest.raises(UsageError, match=f"^--prefix-cache-dir {folder}.*{words}"):
        prepare_directory(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match=r"cannot be used: .*Permission denied"):
        prepare_directory(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345, not to 0: give a directory of your own"):
        prepare_directory(tmp_path)
