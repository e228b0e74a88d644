"""llama.cpp as a process-wide thing: checked, initialised once, its log and its last line caught.

The library's state is global to the process, and so is the one `Library`; open it before anything else in this room.
Callbacks run on whatever thread the library logs from; they take no locks and do not raise.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import llama_cpp
from llama_cpp import llama_cpp as capi

from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.llama import PACKAGE
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.upstream.numbers import LOG_CONTINUED, LOG_LEVELS, PINNED_VERSION
from worker.models.upstream.wording import ALLOCATION_FAILED, BUFFER, NO_REASON, OFFLOADED, WITHOUT_FLASH

_AbortCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

LIBRARY_DIR = Path(capi._lib._name).parent
"""The folder of libllama and of ggml's backends, also if they are modules of their own."""


class _SymbolInfo(ctypes.Structure):
    """Dl_info (dlfcn.h): the library that has a symbol."""

    _fields_ = (("file", ctypes.c_char_p), ("_", ctypes.c_void_p * 3))


Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One whole line of the library's, without its newline."""

    level: Level
    text: str


@dataclass(slots=True)
class Watch:
    """The facts in the library's log between the begin and the end of one call: the C API has no other way to ask."""

    sizes: BufferSizes = field(default_factory=BufferSizes)
    last_error: str | None = None
    needed_bytes: int | None = None
    """Size of the allocation that failed, if one did."""
    is_without_flash: bool = False
    """True if flash attention is not used, although the caller did not turn it off."""
    n_offloaded: int = 0
    n_layers: int = 0
    """The number of layers of the model, the output layer included; 0 if the build has no GPU backend and says
    nothing."""

    def take(self, line: LogLine) -> None:
        if line.level == "error" and not NO_REASON.search(line.text):
            self.last_error = line.text
        if match := BUFFER.match(line.text):
            size_bytes = round(float(match["mib"]) * 2**20)
            self.sizes += BufferSizes((Buffer(match["name"], match["kind"], size_bytes),))
        elif match := OFFLOADED.search(line.text):
            self.n_offloaded, self.n_layers = int(match[1]), int(match[2])
        elif match := ALLOCATION_FAILED.search(line.text):
            self.needed_bytes = int(match[1])
        elif WITHOUT_FLASH.search(line.text):
            self.is_without_flash = True


OnLog = Callable[[LogLine], None]


class Library:
    """Made by `open_library` alone. `on_log` gets every whole line; it must not raise."""

    def __init__(self) -> None:
        self.first_words: list[LogLine] = []
        """The log while the backends began: the module that was loaded, the driver that was missing."""
        self.on_log: OnLog | None = self.first_words.append
        self._watches: list[Watch] = []
        self._level: Level = "info"
        self._partial = b""
        # Stored, because the library calls them for as long as the process lives.
        self._log_callback = capi.llama_log_callback(self.take)
        self._abort_callback = _AbortCallback(_print_last_words)
        capi.llama_log_set(self._log_callback, None)
        library_function("ggml_set_abort_callback", ctypes.c_void_p, _AbortCallback)(self._abort_callback)
        _load_backends()
        if has_backends():
            capi.llama_backend_init()
        self.on_log = None

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Collect what the library says about memory and errors until the block ends."""
        watch = Watch()
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    def take(self, level: int, text: bytes, _: object) -> None:
        """A ggml_log_callback: texts with or without a newline become whole lines."""
        if level != LOG_CONTINUED:
            self._end_line()
            self._level = LOG_LEVELS[level] if level < len(LOG_LEVELS) else "info"
        self._partial += text
        if text.endswith(b"\n"):
            self._end_line()

    def _end_line(self) -> None:
        text = " ".join(self._partial.decode("utf-8", "replace").splitlines())
        self._partial = b""
        if not text:
            return
        line = LogLine(self._level, text)
        for watch in self._watches:
            watch.take(line)
        if self.on_log is not None:
            self.on_log(line)


def open_library(on_log: OnLog | None = None) -> Library:
    """The process's one Library, initialised by the first call. A given `on_log` replaces the one before. Raises:
    ModelLoadFailed when the installed binding is not the pinned one, or has nothing that computes on this machine."""
    library = _open_once()
    if not has_backends():
        raise ModelLoadFailed(
            f"llama.cpp has no backend in {LIBRARY_DIR} for this processor: "
            f"install {PACKAGE} again, built for this machine"
        )
    if on_log is not None:
        library.on_log = on_log
    return library


def build() -> str:
    """Return this llama.cpp's identity: version, the processor features in use, and the sizes of its files."""
    files = sorted((path.name, path.stat().st_size) for path in LIBRARY_DIR.iterdir())
    return f"{PINNED_VERSION} {capi.llama_print_system_info().decode()} {files}"


@functools.cache
def _open_once() -> Library:
    check_binding(llama_cpp.__version__)
    library = Library()
    check_runtimes(LIBRARY_DIR)
    return library


def check_runtimes(folder: Path) -> None:
    """Refuse a library that this process has loaded if it was linked with a C++ runtime of its own. It would crash
    beside the system's, which numpy brings. Raises: ModelLoadFailed."""
    for path in folder.glob("lib*.so*"):
        found = _SymbolInfo()
        with suppress(OSError, AttributeError):  # it is not loaded, or not in C++
            thrown = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD).__cxa_throw
            ctypes.CDLL(None).dladdr(thrown, ctypes.byref(found))
        if found.file and path.samefile(os.fsdecode(found.file)):
            raise ModelLoadFailed(
                f"{path} was linked with a C++ runtime of its own, and would crash beside numpy's: "
                f"install {PACKAGE} again, built without -static-libstdc++"
            )


def check_binding(version: str) -> None:
    """Refuse another version, which would corrupt memory instead of failing. Raises: ModelLoadFailed."""
    if version != PINNED_VERSION:
        raise ModelLoadFailed(
            f"llama-cpp-python is {version}, but {PINNED_VERSION} is needed; "
            f"install it again with: pip install llama-cpp-python=={PINNED_VERSION}"
        )


def load_failure(what: str, watch: Watch, free_bytes: int) -> ModelLoadFailed | InsufficientMemory:
    """The error for a NULL from the library, with its own last error line. `free_bytes`: of the device asked."""
    said = watch.last_error or "the library gave no reason"
    if watch.needed_bytes is None:
        return ModelLoadFailed(f"{what}: {said}")
    return InsufficientMemory(
        f"{what}: no memory for {watch.needed_bytes} bytes ({said})",
        needed_bytes=watch.needed_bytes,
        available_bytes=free_bytes,
    )


def library_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of llama.cpp by our own prototype; ggml's have none in the binding. Any: ctypes types have no base.

    A function of ggml is looked up where libllama finds it itself. A wheel holds no symbolic links, so libggml.so is
    another file than the libggml.so.0 that libllama uses: opened too, it would have a list of backends of its own.
    """
    return ctypes.CFUNCTYPE(result, *arguments)((name, capi._lib))


def call_ggml(name: str, result: Any, *arguments: Any) -> Any:
    """One call; the arguments' own ctypes types are its prototype. Any: as for `library_function`."""
    return library_function(name, result, *map(type, arguments))(*arguments)


def give_back_memory() -> None:
    """Return memory that was freed to the system, which takes some milliseconds; only glibc keeps it otherwise."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


def has_backends() -> bool:
    """Return whether there is any device to compute with."""
    return bool(call_ggml("ggml_backend_reg_count", ctypes.c_size_t))


def _load_backends() -> None:
    """Load backends that are modules from LIBRARY_DIR and from nowhere else; linked-in ones are there already.

    llama_backend_init would look for missing ones beside the Python executable and in the working directory, and both
    also load what GGML_BACKEND_PATH names: everyone who can write there could run code as we do.
    Source: ggml_backend_load_all_from_path in ggml-backend-reg.cpp.
    """
    os.unsetenv("GGML_BACKEND_PATH")
    if not has_backends():
        call_ggml("ggml_backend_load_all_from_path", None, ctypes.c_char_p(os.fsencode(LIBRARY_DIR)))


LAST_WORDS = "llama.cpp aborts: "
"""The beginning of the line that it leaves on stderr when it ends the process."""


def _print_last_words(message: bytes) -> None:
    """Called just before abort(): straight to the descriptor, because nothing is flushed after it."""
    os.write(2, LAST_WORDS.encode() + message + b"\n")
