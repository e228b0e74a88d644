"""The devices ggml can compute on, and the backends of this build with or without a device.

Any thread; memory figures are those of the moment.
"""

import ctypes
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from worker.config.engine_settings import Configure, FlashAttn
from worker.errors import ModelLoadFailed
from worker.host import available_memory_bytes
from worker.llama.library import LIBRARY_DIR, LogLine, call_ggml, library_function, open_library
from worker.llama.reasons import reason
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.devices import Device, Kind, Memory
from worker.models.upstream.numbers import CUDA_ATTENTION_PAIRS, CUDA_ATTENTION_TYPES, MEMORY_BREAKDOWN
from worker.models.upstream.wording import BACKEND_FILE, BACKEND_LOADED, NO_DEVICES
from worker.wire.load import Attention

_BACKENDS = {"mtl": "metal", "hip": "rocm"}
"""Our names of ggml's registries and files, where they are others."""


class _Feature(ctypes.Structure):
    """ggml_backend_feature in ggml-backend.h; a name of NULL ends a list."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


@dataclass(frozen=True, slots=True)
class CompiledBackend:
    """A backend of this build: it has devices, or a reason why not."""

    name: str
    """cpu | cuda | metal | vulkan | blas | …"""
    devices: tuple[Device, ...]
    variant: str | None
    """The processor it was compiled for (zen4, haswell), where the build has a module for each and ggml has chosen."""
    features: tuple[str, ...]
    """The processor features that it uses, in ggml's words: AVX2, LLAMAFILE; empty if the backend does not say."""
    reason: str | None
    """The reason why there is no device, and what to do."""


def devices() -> list[Device]:
    """Every device of every backend in this build, in ggml's order. Source: ggml-backend.h."""
    open_library()
    found: list[Device] = []
    for ordinal in range(call_ggml("ggml_backend_dev_count", ctypes.c_size_t)):
        found.append(_describe(ordinal, found))
    return found


def cpu() -> Device:
    """Every build computes on the CPU; the library is not opened without one."""
    return next(device for device in devices() if device.kind == "cpu")


def device_handle(device: Device) -> int:
    """ggml's own pointer to the device; for this room only."""
    return int(call_ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(device.ordinal)))


def memory_of(device: Device) -> Memory:
    """The device's memory now; ggml calls all of a CPU's memory free. Source: ggml_backend_dev_memory."""
    return _memory(ctypes.c_void_p(device_handle(device)))


def features(device: Device) -> tuple[str, ...]:
    """Return the processor features that the device's backend uses, in ggml's words: AVX2, LLAMAFILE, SVE_CNT=32; empty
    if it does not say."""
    registry, address = backend_function(device, b"ggml_backend_get_features")
    if not address:
        return ()
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)(address)(registry)
    found = itertools.takewhile(lambda feature: feature.name, (listed[at] for at in itertools.count()))
    reported = ((feature.name.decode(), feature.value.decode()) for feature in found)
    return tuple(name if value == "1" else f"{name}={value}" for name, value in reported if value != "0")


def can_split_rows(device: Device) -> bool:
    """Return whether the device's backend can have a part of each matrix on each GPU, as --split-mode row asks."""
    return bool(backend_function(device, b"ggml_backend_split_buffer_type")[1])


def backend_function(device: Device, name: bytes) -> tuple[ctypes.c_void_p, int | None]:
    """The device's backend, and where its function of that name is, if it has one."""
    handle = ctypes.c_void_p(device_handle(device))
    registry = ctypes.c_void_p(call_ggml("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle))
    address = call_ggml("ggml_backend_reg_get_proc_address", ctypes.c_void_p, registry, ctypes.c_char_p(name))
    return registry, address


def _describe(ordinal: int, before: Seq[Device]) -> Device:
    handle = ctypes.c_void_p(call_ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(ordinal)))
    registry = ctypes.c_void_p(call_ggml("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle))
    backend = _backend_of(registry)
    kind = get_args(Kind)[call_ggml("ggml_backend_dev_type", ctypes.c_int, handle)]
    memory = _memory(handle)
    return Device(
        name=_text("ggml_backend_dev_name", handle),
        description=_text("ggml_backend_dev_description", handle).strip(),
        kind=kind,
        backend=backend,
        index=sum(device.backend == backend for device in before),
        # ggml calls all of a CPU's memory free.
        free_bytes=min(memory.free_bytes, available_memory_bytes()) if kind == "cpu" else memory.free_bytes,
        total_bytes=memory.total_bytes,
        ordinal=ordinal,
        has_host_buffers=bool(call_ggml("ggml_backend_dev_host_buffer_type", ctypes.c_void_p, handle)),
    )


def _memory(handle: ctypes.c_void_p) -> Memory:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call_ggml("ggml_backend_dev_memory", None, handle, ctypes.pointer(free), ctypes.pointer(total))
    return Memory(free.value, total.value)


def _backend_of(registry: ctypes.c_void_p) -> str:
    name = _text("ggml_backend_reg_name", registry).lower()
    return _BACKENDS.get(name, name)


def _text(name: str, handle: ctypes.c_void_p) -> str:
    return bytes(call_ggml(name, ctypes.c_char_p, handle)).decode("utf-8", "replace")


# ── what this build has, and why a part of it has no device ──────────────────────────────────────


def backends(environ: Mapping[str, str]) -> list[CompiledBackend]:
    """Every backend: first those with devices, in ggml's order. `environ`: where a variable may hide a device. Raises:
    ModelLoadFailed, as `open_library`."""
    words = open_library().first_words
    found = [device for device in devices() if not device.is_shell]
    n_registries = call_ggml("ggml_backend_reg_count", ctypes.c_size_t)
    registries = (call_ggml("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(at)) for at in range(n_registries))
    began = {_backend_of(ctypes.c_void_p(registry)) for registry in registries}
    modules = loaded_modules(words)
    have: dict[str, list[Device]] = {}
    for device in found:
        have.setdefault(device.backend, []).append(device)
    listed = [
        CompiledBackend(name, tuple(own), modules.get(name), features(own[0]), None) for name, own in have.items()
    ]
    for name in sorted((began | compiled(LIBRARY_DIR)) - have.keys()):
        about = [line.text for line in words if line.text.startswith(f"ggml_{name}") and _is_complaint(line)]
        module = LIBRARY_DIR / f"libggml-{name}.so"
        if not about and modules and module.exists() and name not in began:
            about = [complaint_of(module)]
        listed.append(CompiledBackend(name, (), None, (), reason(name, about[-1] if about else "", environ)))
    return listed


def compiled(folder: Path) -> set[str]:
    """The backends whose libraries lie in the folder, whether they are linked in or modules."""
    matches = (BACKEND_FILE.fullmatch(path.name) for path in folder.iterdir())
    names = {match["backend"] for match in matches if match is not None}
    return {_BACKENDS.get(name, name) for name in names - {"base"}}


def loaded_modules(words: Seq[LogLine]) -> dict[str, str | None]:
    """The backend of each module that ggml says it has loaded, and the processor's name if it was one of several."""
    paths = (Path(loaded["path"]) for line in words if (loaded := BACKEND_LOADED.match(line.text)))
    matches = (BACKEND_FILE.fullmatch(path.name) for path in paths)
    return {match["backend"]: match["variant"] for match in matches if match is not None}


def complaint_of(module: Path) -> str:
    """Return what is wrong with a module, in ggml's words; empty if nothing is, and then it is loaded. When it tries
    them all, ggml does not say why one fails."""
    with open_library().watch() as watch:
        call_ggml("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p(os.fsencode(module)))
    return watch.last_error or ""


def _is_complaint(line: LogLine) -> bool:
    return line.level in ("warning", "error") or NO_DEVICES in line.text


# ── attention on a GPU ───────────────────────────────────────────────────────────────────────────

# llama.cpp computes attention on the CPU if it was asked to use flash attention and the GPU has none, as it has none
# for some types of KV caches and some heads. That takes many times as long, and is reported nowhere.

_ANY_PAIR = f"{', '.join(CUDA_ATTENTION_PAIRS[:-1])} or {CUDA_ATTENTION_PAIRS[-1]}"


def check_cache_types(config: Configure, device: Device, type_k: str) -> str | None:
    """A warning, if attention over such a cache is slow on the device; None where nothing is to be said.

    Raises: ModelLoadFailed where it would be computed on the CPU.
    """
    type_v = config.cache_type_v
    if device.backend != "cuda" or config.flash_attn == "off":
        return None
    for flag, name in (("--cache-type-k", type_k), ("--cache-type-v", type_v)):
        if name not in CUDA_ATTENTION_TYPES:
            raise ModelLoadFailed(
                f"{flag} {name}: CUDA has no flash attention for it, and attention would be computed on the CPU: use "
                f"{_ANY_PAIR}"
            )
    if type_k == type_v and type_k in CUDA_ATTENTION_PAIRS:
        return None
    return (
        f"--cache-type-k {type_k} with --cache-type-v {type_v}: CUDA has no kernel for this pair and converts both to "
        f"f16 in every step, which is slow; use {_ANY_PAIR} for both"
    )


def asked_flash(config: Configure, device: Device) -> FlashAttn:
    """Return the flash attention to ask of the library, which on a GPU finds out by itself whether there is any."""
    return "auto" if device.is_gpu and config.flash_attn == "on" else config.flash_attn


def check_flash(config: Configure, device: Device, *, is_without_flash: bool) -> None:
    """Raises: ModelLoadFailed where flash attention was asked for and the device has none for the model."""
    if device.is_gpu and config.flash_attn == "on" and is_without_flash:
        raise ModelLoadFailed(
            f"--flash-attn on: {device.name} has no flash attention for the heads of this model, and it would be "
            "computed on the CPU: use --flash-attn auto"
        )


def attention_at(gpu_names: Seq[str], sizes: BufferSizes) -> Attention | None:
    """Return where attention is computed; None if no layer has cells for it. `gpu_names`: none for a CPU.

    The library computes a layer's attention where its KV cells lie, unless `check_flash` has refused.
    """
    all_bytes, gpu_bytes = sizes.of_kind("KV"), sizes.of_kind("KV", gpu_names)
    if not all_bytes:
        return None
    return "both" if 0 < gpu_bytes < all_bytes else "gpu" if gpu_bytes else "cpu"


# ── memory, by the library's own account ─────────────────────────────────────────────────────────

_N_WORDS, _ROOT, _COUNT, _LEFT, _RIGHT = (3, 1, 2, 0, 1) if sys.platform == "darwin" else (6, 2, 5, 2, 3)
"""The words of a std::map, and the places of its root, its count, and a node's children, in libc++ and libstdc++."""


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_size_t * _N_WORDS),)


class _Node(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_size_t * 4),
        ("buffer_type", ctypes.c_void_p),
        ("sizes", ctypes.c_size_t * 3),
    )


def buffer_type_name(buffer_type: ctypes.c_void_p) -> str:
    return bytes(call_ggml("ggml_backend_buft_name", ctypes.c_char_p, buffer_type)).decode()


def breakdown(context: int) -> BufferSizes:
    """The buffers of a context and of its model, by the library's handle. The kind KV is all of its memory, with the
    states of recurrent layers. llama_get_memory_breakdown (llama-ext.h) returns a std::map whose nodes are never freed,
    so this is for short-lived processes.
    """
    found = library_function(MEMORY_BREAKDOWN, _Map, ctypes.c_void_p)(context)
    nodes = list(_nodes(found.words[_ROOT]))
    assert len(nodes) == found.words[_COUNT], "this C++ runtime has a std::map of another form"
    return BufferSizes(
        tuple(
            Buffer(buffer_type_name(ctypes.c_void_p(node.buffer_type)), kind, size_bytes)
            for node in nodes
            for kind, size_bytes in zip(("model", "KV", "compute"), node.sizes, strict=True)
            if size_bytes
        )
    )


def _nodes(address: int) -> Iterator[_Node]:
    if address:
        node = _Node.from_address(address)
        yield from _nodes(node.words[_LEFT])
        yield node
        yield from _nodes(node.words[_RIGHT])
