"""The cells of finished jobs outlive the engine, and with a directory the worker, and change no answer."""

import os
import struct
import sys
from pathlib import Path

import pytest

from tests.worker_process import Event, WorkerProcess, eventually, serve_default
from worker.server.saved.arena import Arena
from worker.server.saved.directory import read_key
from worker.server.saved.records import code_of, read_record, record_of

pytestmark = [pytest.mark.process, pytest.mark.model]

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 8
FIRST: Event = {"prompt": STORY + "Then", "max_tokens": 8}
NEXT: tuple[Event, ...] = (
    {"max_tokens": 24, "logprobs": 2, "ignore_eos": True},
    {"max_tokens": 24, "logprobs": 2, "ignore_eos": True, "temperature": 0.8, "seed": 5},
)
"""A greedy turn and a drawn one."""


def serve(model: Path, *arguments: str) -> WorkerProcess:
    return serve_default(model, "--ctx-size", "2048", "--parallel", "2", *arguments)


def answered(worker: WorkerProcess, prompt: str) -> list[list[Event]]:
    """The tokens and log-probabilities of the next turns, bit for bit as they are told."""
    turns = [worker.run(**request, prompt=prompt) for request in NEXT]
    return [[{**event, "ts": None} for event in turn if event["type"] == "token"] for turn in turns]


def n_cached(worker: WorkerProcess, prompt: str) -> int:
    n_found: int = worker.run(prompt=prompt, max_tokens=1)[0]["cached_tokens"]
    return n_found


class Conversation:
    """A first turn, and what a worker that nothing happens to finds of the next one, and answers."""

    def __init__(self, model: Path) -> None:
        with serve(model, "--prefix-cache-mb", "0", "--prompt-lookup", "off") as plain:
            plain.ready()
            self.prompt = STORY + "Then" + plain.text(**FIRST) + " And so"
            self.answers = answered(plain, self.prompt)
        with serve(model) as worker:
            worker.ready().run(**FIRST)
            self.n_warm = n_cached(worker, self.prompt)

    def check(self, worker: WorkerProcess) -> None:
        assert n_cached(worker, self.prompt) == self.n_warm > 100
        assert answered(worker, self.prompt) == self.answers


@pytest.fixture(scope="module")
def conversation(any_model: Path) -> Conversation:
    return Conversation(any_model)


def logged(worker: WorkerProcess, event: str) -> Event:
    """The line of that event, which comes before `ready`, or after it where the machine is slow."""
    return next((line for line in worker.log if line["event"] == event), None) or worker.wait_for(event)


def in_memory(worker: WorkerProcess) -> int:
    """The number of entries of the front's memory."""
    for fd in Path(f"/proc/{worker.process.pid}/fd").iterdir():
        if str(fd.readlink()).startswith("/memfd:llorch-prefix-cache"):
            own = os.open(fd, os.O_RDWR)
            try:
                return len(Arena(own).found)
            finally:
                os.close(own)
    raise AssertionError("the front has no such memory")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the front's memory through /proc")
@pytest.mark.one_order
def test_after_an_engines_death_the_next_turn_finds_what_it_would_have_found(
    any_model: Path, conversation: Conversation
) -> None:
    with serve(any_model) as worker:
        worker.ready().run(**FIRST)
        eventually(lambda: in_memory(worker))
        for _ in range(2):
            n_entries = in_memory(worker)
            told = worker.revive("prefix_cache_restored")
            assert told["parts"] == n_entries
            cache = worker.health()["prefix_cache"]
            assert (cache["restored_tokens"], cache["restored_bytes"]) == (told["tokens"], told["bytes"])
        conversation.check(worker)
        assert not [line for line in worker.log if line["event"] == "prefix_cache_dropped"]


@pytest.fixture
def folder(any_model: Path, tmp_path: Path) -> Path:
    """The files that a worker has left."""
    folder = tmp_path / "cache"
    with serve(any_model, "--prefix-cache-dir", str(folder)) as worker:
        worker.ready().run(**FIRST)
        eventually(lambda: list(folder.glob("*.kv")))
        worker.terminate()
        assert worker.exit_code() == 0
    return folder


@pytest.mark.one_order
def test_after_a_restart_of_the_worker_too_and_two_may_have_one_directory_at_once(
    any_model: Path, conversation: Conversation, tmp_path: Path
) -> None:
    """Each writes what its own jobs computed; who starts next finds all of it."""
    folder = ("--prefix-cache-dir", str(tmp_path / "cache"))
    other = {**FIRST, "prompt": f"In the north, {STORY}"}
    with serve(any_model, *folder) as one, serve(any_model, *folder) as two:
        for worker in (one, two):
            worker.ready()
        one.run(**FIRST)
        two.run(**other)
        eventually(lambda: len(list((tmp_path / "cache").glob("*.kv"))) == 2)
        for worker in (one, two):
            worker.terminate()
            assert worker.exit_code() == 0
    with serve(any_model, *folder) as third:
        logged(third.ready(), "prefix_cache_restored")
        conversation.check(third)
        assert n_cached(third, other["prompt"]) > 100
        assert not [line for line in third.log if line["event"] == "prefix_cache_dropped"]


@pytest.mark.one_order
def test_a_damaged_file_is_one_warning_and_gone_and_the_answer_is_right(
    any_model: Path, conversation: Conversation, folder: Path
) -> None:
    files = list(folder.glob("*.kv"))
    for path in files:
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with serve(any_model, "--prefix-cache-dir", str(folder)) as worker:
        told = logged(worker.ready(), "prefix_cache_dropped")
        assert (told["level"], told["parts"]) == ("warning", len(files))
        assert "its authentication code is wrong" in told["reason"]
        assert not any(path.exists() for path in files)
        assert n_cached(worker, conversation.prompt) == 0
        assert answered(worker, conversation.prompt) == conversation.answers
        worker.terminate()
        assert worker.exit_code() == 0
        assert sum(line["event"] == "prefix_cache_dropped" for line in worker.log) == 1


def poisoned(path: Path, key: bytes) -> Path:
    """The file with another type of K, and a right code, as only a holder of the key can make it."""
    data = path.read_bytes()
    record = read_record(data, key=key, binding=data[8:40])
    state = bytearray(record.state)
    (n_cells,) = struct.unpack_from("<I", state, 12)
    struct.pack_into("<i", state, 16 + 12 * n_cells + 8, 3)
    whole = b"".join(record_of(record.tokens, bytes(state), key=key, binding=data[8:40]))
    path.unlink()
    path = path.with_name(f"{path.name.partition('-')[0]}-{code_of(whole).hex()}.kv")
    path.write_bytes(whole)
    return path


@pytest.mark.one_order
def test_an_engine_that_dies_of_what_was_kept_dies_once(
    any_model: Path, conversation: Conversation, folder: Path
) -> None:
    files = [poisoned(path, read_key(folder)) for path in folder.glob("*.kv")]
    with serve(any_model, "--prefix-cache-dir", str(folder)) as worker:
        worker.ready()
        assert answered(worker, conversation.prompt) == conversation.answers
        death = worker.wait_for("engine_restarted")
        assert "bytes of saved cells could be written" in death["last_words"]
        told = worker.wait_for("prefix_cache_dropped")
        assert told["reason"] == "the previous engine crashed while loading it"
        assert not any(path.exists() for path in files)
        assert worker.metrics()["worker_engine_restarts_total"] == 1


def test_a_directory_that_everybody_can_write_is_no_start(any_model: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with serve(any_model, "--prefix-cache-dir", str(tmp_path)) as worker:
        assert worker.exit_code() == 2
        assert "is writable by every user: chmod o-w, or give another directory" in "".join(worker.stderr)


def test_what_a_salted_prompt_leaves_is_found_with_its_salt_only_and_outlives_no_engine(
    any_model: Path, tmp_path: Path
) -> None:
    """A prompt without a salt is found without one, in memory and in files."""
    folder = tmp_path / "cache"
    salted: Event = FIRST | {"cache_salt": "client one"}

    def cached(worker: WorkerProcess, **fields: str) -> int:
        n_found: int = worker.run(**FIRST | {"max_tokens": 1}, **fields)[0]["cached_tokens"]
        return n_found

    with serve(any_model, "--prefix-cache-dir", str(folder)) as worker:
        first = worker.ready().run(**salted)
        n_prompt = first[0]["prompt_tokens"]
        assert cached(worker, cache_salt="client one") == n_prompt - 1
        assert cached(worker, cache_salt="client two") == 0
        worker.terminate()
        assert worker.exit_code() == 0
        assert not list(folder.glob("*.kv"))
    with serve(any_model, "--prefix-cache-dir", str(folder)) as worker:
        assert cached(worker.ready(), cache_salt="client one") == 0
        assert cached(worker) == 0
        assert cached(worker) == n_prompt - 1
        eventually(lambda: list(folder.glob("*.kv")))
        worker.revive()
        assert cached(worker, cache_salt="client one") == 0
        assert cached(worker) == n_prompt - 1
