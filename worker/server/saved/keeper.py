"""The keeper: a thread that saves cells so that they outlive a crash of the engine, and the worker.

The step thread hands copies over, and waits for nothing here: a copy stays its own until it has been written, and moves
then. What is evicted before its turn is never written. Loading a saved part may crash an engine: a part that is being
loaded is marked until a step with it has run, and a part that is found marked is dropped.
"""

import logging
import mmap
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from worker.engine.backend import Checkpoint, Found, Saved
from worker.host import sha256_of
from worker.server.saved.arena import Arena, Bytes, Room
from worker.server.saved.copies import Kept, Layout, NoCells, SavedCells, SavedCheckpoint
from worker.server.saved.directory import CacheFiles, read_key
from worker.server.saved.records import (
    CELLS,
    CHECKPOINT,
    CODE_BYTES,
    Untrusted,
    binding_of,
    code_of,
    read_record,
    record_of,
)
from worker.wire.jobs import TokenId

log = logging.getLogger(__name__)
"""Its warnings go to the front, which logs them (server/process/main.py)."""

FIND_S = 2.0
"""The longest that the first job waits until the saved cells are checked, at about 1 GB/s. The rest follow later."""

_NICENESS = 10
"""Steps come first; on one that waits for a thread whose processor is taken, all of its threads wait."""

_SLACK = 2
"""The memory's address space as a multiple of the limit, so that holes between entries do not take its room. Entries
that are evicted a moment later are in it as well."""

_NO_KEY = b""
"""The key without a directory: the memory is the front's and ours alone, and the code finds what a crash left
broken."""


@dataclass(frozen=True, slots=True)
class Keeping:
    arena_fd: int
    directory: Path | None
    limit_bytes: int
    model_paths: tuple[Path, ...]
    facts: bytes
    """All that decides what cells look like and mean, beside the model."""
    layout: Layout


class Keeper:
    """`take`, `mark` and `flush` are the step thread's; they wait for no disk. Made once the model is loaded."""

    def __init__(self, keeping: Keeping) -> None:
        """Raises: OSError where there is no address space for what is to be kept."""
        self._keeping = keeping
        self._arena = Arena(keeping.arena_fd, _SLACK * keeping.limit_bytes)
        self._key, self._binding = _NO_KEY, b""
        self._files: CacheFiles | None = None
        self._has_warned = False
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """The work of the keeper's thread."""

    # ── the step thread ──────────────────────────────────────────────────────────────────────────

    def find(self, report: Callable[[Found], None]) -> None:
        """Begin. `report` is called once, on the keeper's thread, with the saved cells that can be trusted; until then,
        or FIND_S, this waits.
        """
        has_reported = threading.Event()
        threading.Thread(target=self._run, args=(report, has_reported), name="keeper", daemon=True).start()
        has_reported.wait(FIND_S)

    def take(self, saved: Kept) -> None:
        """Keep a copy whose tokens are known, if it is still there when its turn comes."""
        self._queue.put(partial(self._keep, weakref.ref(saved)))

    def mark(self, parts: Iterable[Kept], *, is_in_use: bool) -> None:
        """Parts are about to be loaded, or a step with them has run."""
        for part in parts:
            if part.room is not None:
                self._arena.mark(part.room, is_in_use=is_in_use)

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was taken is kept."""
        is_done = threading.Event()
        self._queue.put(is_done.set)
        is_done.wait(timeout_s)

    # ── the keeper's thread ──────────────────────────────────────────────────────────────────────

    def _run(self, report: Callable[[Found], None], has_reported: threading.Event) -> None:
        try:
            self._identify()
            report(self._found())
            has_reported.set()
            if sys.platform == "linux":
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            while True:
                self._queue.get()()
        except Exception as error:  # noqa: BLE001 - top of a thread: jobs continue without it, and the log says so
            log.warning("the prefix cache no longer outlives this engine: %s: %s", type(error).__name__, error)
        finally:
            has_reported.set()

    def _identify(self) -> None:
        """Determine the model whose cells these are. A digest of its file is needed only if others may have written
        what is found.
        """
        keeping = self._keeping
        model = stamp = binding_of(*map(_stamp_of, keeping.model_paths))
        if keeping.directory is not None:
            self._key = read_key(keeping.directory)
            noted = self._arena.note
            if noted[: len(stamp)] == stamp:
                # A predecessor of this engine has read the same files.
                model = noted[len(stamp) : 2 * len(stamp)]
            else:
                model = binding_of(*(sha256_of(path).encode() for path in keeping.model_paths))
            self._arena.note = stamp + model
        self._binding = binding_of(model, keeping.facts)
        if keeping.directory is not None:
            self._files = CacheFiles(keeping.directory, self._binding, keeping.limit_bytes)

    def _found(self) -> Found:
        """Return what is there, prefixes first; remove what cannot be trusted."""
        parts: list[tuple[list[TokenId], Saved]] = []
        checkpoints: list[tuple[list[TokenId], Checkpoint]] = []
        reasons: list[str] = []
        for found in (*self._in_memory(), *self._in_files()):
            if isinstance(found, str):
                reasons.append(found)
                continue
            tokens = [TokenId(token) for token in found.tokens]
            if isinstance(found, SavedCells):
                parts.append((tokens, found))
                continue
            checkpoints.append((tokens, found))
            if not self._keeping.layout.n_caches:
                parts.append((tokens, NoCells(0, len(tokens))))
        parts.sort(key=lambda part: (len(part[0]) - part[1].n_tokens, -part[1].n_tokens))
        checkpoints.sort(key=lambda each: each[1].n_tokens)
        return Found(tuple(parts), len(reasons), reasons[0] if reasons else None, checkpoints=tuple(checkpoints))

    def _in_memory(self) -> Iterator[Kept | str]:
        """Yield what another engine of this front has left there, or why it is dropped."""
        self._codes: set[bytes] = set()
        for room, was_in_use in self._arena.found:
            view = self._arena.view(room)
            try:
                if was_in_use:
                    raise Untrusted("the previous engine crashed while loading it")
                saved = self._trusted(view)
            except ValueError as error:
                self._forget(room, code_of(view.data))
                yield str(error)
                continue
            self._settle(saved, room)
            self._codes.add(code_of(view.data))
            yield saved

    def _in_files(self) -> Iterator[Kept | str]:
        """Yield what is only there, or why it is dropped."""
        if self._files is None:
            return
        known = set(map(self._files.name, self._codes))
        for name in self._files.names():
            if name in known:
                continue
            try:
                data = self._files.read(name)
                saved = self._trusted(np.frombuffer(data, np.uint8))
                if name != self._files.name(code_of(data)):
                    raise Untrusted("its name belongs to other content")
            except FileNotFoundError:  # another worker has just removed it
                continue
            except OSError as error:
                yield f"{name}: {error.strerror}"
            except ValueError as error:
                self._files.remove(name)
                yield f"{name}: {error}"
            else:
                if (room := self._arena.store([data])) is not None:
                    self._settle(saved, room)
                yield saved

    def _trusted(self, view: Bytes) -> Kept:
        """Raises: Untrusted, ValueError."""
        record = read_record(view.data, key=self._key, binding=self._binding)
        state = np.frombuffer(record.state, np.uint8)
        if record.kind == CHECKPOINT:
            checkpoint = SavedCheckpoint(state, self._keeping.layout, record.tokens)
            if checkpoint.n_tokens != len(record.tokens):
                raise Untrusted(f"it is the state after {checkpoint.n_tokens} tokens, not after {len(record.tokens)}")
            return checkpoint
        cells = SavedCells([state], self._keeping.layout, record.tokens, self.take)
        if cells.start + cells.n_tokens != len(record.tokens):
            raise Untrusted(
                f"its {cells.n_tokens} cells from {cells.start} on are not the last of {len(record.tokens)}"
            )
        return cells

    def _keep(self, taken: "weakref.ref[Kept]") -> None:
        saved = taken()
        if saved is None or saved.room is not None:
            return
        kind = CHECKPOINT if isinstance(saved, SavedCheckpoint) else CELLS
        parts = record_of(saved.tokens, saved.items.data, key=self._key, binding=self._binding, kind=kind)
        room = self._arena.store(parts)
        if room is None:
            return
        view = self._arena.view(room)
        # Looked at once, its pages are there when the step thread reads them: 3 ms for 23 MB instead of 21.
        view[:: mmap.PAGESIZE].sum()
        self._settle(saved, room)
        if self._files is not None:
            try:
                self._files.write(self._files.name(code_of(view.data)), view.data)
            except OSError as error:
                if not self._has_warned:
                    log.warning("--prefix-cache-dir: a file could not be written: %s", error.strerror)
                self._has_warned = True

    def _settle(self, saved: Kept, room: Room) -> None:
        """Let the copy be in the room from now on, which is free again once the copy has no user."""
        view = self._arena.view(room)
        end = len(view) - CODE_BYTES
        saved.move_to(room, view[end - saved.n_bytes : end])
        forget = partial(self._forget, room, code_of(view.data))
        weakref.finalize(saved, self._queue.put, forget).atexit = False

    def _forget(self, room: Room, code: bytes) -> None:
        self._arena.free(room)
        if self._files is not None:
            self._files.remove(self._files.name(code))


def _stamp_of(path: Path) -> bytes:
    """Return a value that changes when the file is replaced."""
    found = path.stat()
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}".encode(errors="surrogateescape")
