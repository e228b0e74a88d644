"""What this build of llama.cpp was compiled with, and what has become of each part on this machine.

Owns the names of ggml's library files and the instruction set that was chosen. Knows nothing of models. Any thread.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from worker.llama.buffers import LogLine
from worker.llama.devices import Device, backend_name, devices, features
from worker.llama.library import LIBRARY_DIR, call_ggml, open_library
from worker.llama.reasons import reason

_FILE = re.compile(r"libggml-(?P<backend>[a-z]+)(?:-(?P<variant>.+))?\.(?:so|dylib)")
"""libggml-vulkan.so, libggml-cpu-zen4.so; not libggml-cpu.so.0, which is the same again."""
_LOADED = re.compile(r"^load_backend: loaded \S+ backend from (?P<path>.+)$")
_NOT_A_BACKEND = "base"
_REGISTERED_AS = {"hip": "rocm"}
"""Files whose registry has another name."""


@dataclass(frozen=True, slots=True)
class CompiledBackend:
    """A backend of this build: it has devices, or a reason why not."""

    name: str
    """cpu | cuda | metal | vulkan | blas | …"""
    devices: tuple[Device, ...]
    variant: str | None
    """The processor it was compiled for (zen4, haswell), where the build has a module for each and ggml has chosen."""
    features: tuple[str, ...]
    """In ggml's words: AVX2, LLAMAFILE; empty where the backend does not tell."""
    reason: str | None
    """Why there is no device, and what to do."""


def backends(environ: Mapping[str, str]) -> list[CompiledBackend]:
    """Every backend: first those with devices, in ggml's order. `environ`: where a variable may hide a device.

    Raises: ModelLoadFailed, as `open_library`.
    """
    words = open_library().first_words
    found = [device for device in devices() if not device.is_shell]
    names = list(dict.fromkeys(device.backend for device in found))
    absent = sorted((_registered() | compiled(LIBRARY_DIR)) - set(names))
    variants = dict(loaded_variants(words))
    return [
        *(_present(name, found, variants.get(name)) for name in names),
        *(CompiledBackend(name, (), None, (), reason(name, _said(name, words), environ)) for name in absent),
    ]


def compiled(folder: Path) -> set[str]:
    """The backends whose libraries lie in the folder, whether they are linked in or modules."""
    matches = (_FILE.fullmatch(path.name) for path in folder.iterdir())
    names = {match["backend"] for match in matches if match is not None}
    return {_REGISTERED_AS.get(name, name) for name in names - {_NOT_A_BACKEND}}


def loaded_variants(words: Seq[LogLine]) -> Iterator[tuple[str, str]]:
    """(backend, variant) of each module that ggml says it has chosen among several."""
    for match in _loaded_files(words):
        if match["variant"] is not None:
            yield match["backend"], match["variant"]


def complaint_of(module: Path) -> str:
    """What is wrong with a module, in ggml's words; empty when nothing is, and then it is loaded.

    ggml has tried it before, but does not say why one fails when it tries them all. Source: ggml_backend_load.
    """
    with open_library().watch() as watch:
        call_ggml("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p(os.fsencode(module)))
    return watch.last_error or ""


def _loaded_files(words: Seq[LogLine]) -> Iterator[re.Match[str]]:
    for line in words:
        loaded = _LOADED.match(line.text)
        if loaded and (match := _FILE.fullmatch(Path(loaded["path"]).name)):
            yield match


def _present(name: str, found: Seq[Device], variant: str | None) -> CompiledBackend:
    own = tuple(device for device in found if device.backend == name)
    return CompiledBackend(name, own, variant, features(own[0]), None)


def _registered() -> set[str]:
    """Those that began, with or without a device."""
    n_registries = call_ggml("ggml_backend_reg_count", ctypes.c_size_t)
    registries = (call_ggml("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(at)) for at in range(n_registries))
    return {
        backend_name(call_ggml("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p(registry)).decode())
        for registry in registries
    }


def _said(name: str, words: Seq[LogLine]) -> str:
    """The last complaint about a backend without devices; empty when there was none."""
    about = [line.text for line in words if line.text.startswith(f"ggml_{name}") and _is_complaint(line)]
    if about:
        return about[-1]
    module = LIBRARY_DIR / f"libggml-{name}.so"
    has_modules = any(_loaded_files(words))
    return complaint_of(module) if has_modules and module.exists() and name not in _registered() else ""


def _is_complaint(line: LogLine) -> bool:
    return line.level in ("warning", "error") or "No devices found" in line.text
