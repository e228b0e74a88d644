"""The reasons why a backend that llama.cpp was compiled with has no device, and what to do, in plain words. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple


class _Cause(NamedTuple):
    """Holds when `pattern` is in what was said and the `variable`, if one is named, is set. `{}` is its value."""

    backend: str
    pattern: str
    reason: str
    variable: str | None = None


_NO_VULKAN_DRIVER = (
    "no Vulkan driver is installed: install your GPU's, such as mesa-vulkan-drivers; a container needs one inside, and "
    "the GPU (--device /dev/dri, or --gpus all with NVIDIA_DRIVER_CAPABILITIES=all)"
)

_CAUSES = (
    _Cause(
        "cuda",
        r"libcuda\.so\S*: cannot open",
        "there is no NVIDIA driver here (libcuda.so.1): install it, or start the container with --gpus all",
    ),
    _Cause(
        "cuda",
        r"lib(cudart|cublas|cublasLt|nvrtc)\.so\S*: cannot open",
        "CUDA's own libraries are not installed: install the CUDA runtime and cuBLAS of the version named here, "
        "or name their folder in LD_LIBRARY_PATH ({said})",
    ),
    _Cause(
        "cuda",
        r"driver version is insufficient|stub library",
        "the NVIDIA driver is missing or older than this build's CUDA: update it on the host, or start the container "
        "with --gpus all",
    ),
    _Cause(
        "cuda",
        r"forward compatibility was attempted",
        "the CUDA compatibility libraries that are installed here do not support this GPU: update the host's NVIDIA "
        "driver, or remove them from LD_LIBRARY_PATH",
    ),
    _Cause(
        "cuda",
        r"no CUDA-capable device",
        "CUDA_VISIBLE_DEVICES={} leaves no GPU: correct or unset it",
        "CUDA_VISIBLE_DEVICES",
    ),
    _Cause(
        "cuda",
        r"no CUDA-capable device",
        "the NVIDIA driver shows no GPU: see what nvidia-smi says, and start a container with --gpus all",
    ),
    _Cause("cuda", r"failed to initialize CUDA: ", "CUDA does not start ({said}): see what nvidia-smi says"),
    _Cause(
        "vulkan",
        r"libvulkan\.so\S*: cannot open",
        "Vulkan's loader is not installed: install libvulkan1 and your GPU's Vulkan driver",
    ),
    _Cause("vulkan", "", "GGML_DISABLE_VULKAN is set: unset it", "GGML_DISABLE_VULKAN"),
    _Cause(
        "vulkan",
        "",
        "GGML_VK_VISIBLE_DEVICES={} names no existing device: correct or unset it",
        "GGML_VK_VISIBLE_DEVICES",
    ),
    _Cause(
        "vulkan",
        r"ggml_vulkan: No devices found",
        "Vulkan's drivers find no GPU: install your GPU's driver, and give a container the GPU (--device /dev/dri); "
        "one that computes on the processor is used only if GGML_VK_VISIBLE_DEVICES=0 asks for it",
    ),
    _Cause("vulkan", r"ggml_backend_init returned NULL|^$", _NO_VULKAN_DRIVER),
    _Cause(
        "metal",
        "",
        "macOS gives this process no GPU, as in a virtual machine without one: run the worker outside it, or use "
        "--device cpu",
    ),
    _Cause("", r": cannot open shared object file", "a library it needs is not installed ({said})"),
    _Cause("", r".", "it could not be started ({said})"),
    _Cause(
        "",
        "",
        "llama.cpp gives no reason: check that the device's driver is installed and that its own tools find the device",
    ),
)
"""The causes in order: the first that holds is reported, and the last always holds."""

_PREAMBLE = re.compile(r"^(?:\w+: )?(?:[Ff]ailed to (?:load|initialize) .*?(?:\.so|\.dylib|CUDA)'?: )?")
_WHOSE = {"cuda": ("libcu", "libnv"), "vulkan": ("libvulkan",)}
"""Shared libraries by the beginning of their names."""


def reason(backend: str, said: str, environ: Mapping[str, str]) -> str:
    """Return why `backend` (cuda, vulkan, …) has no device, and what to do.

    `said`: the last line about it in the library's log, or the loader's error; empty when nothing was said.
    """
    cause = next(cause for cause in _CAUSES if _holds(cause, backend, said, environ))
    value = repr(environ.get(cause.variable, "")) if cause.variable else ""
    return cause.reason.format(value, said=_PREAMBLE.sub("", said))


def unloadable(error: str, package: str) -> str:
    """Return why llama.cpp as a whole cannot be loaded: a missing library of a linked-in backend prevents it. `error`:
    the loader's; `package`: the one that brings llama.cpp.
    """
    missing = _PREAMBLE.sub("", error)
    backend = next((name for name, prefixes in _WHOSE.items() if missing.startswith(prefixes)), None)
    if backend is None:
        return f"llama.cpp cannot be loaded ({missing}): install {package} again, built for this machine"
    return f"llama.cpp was built for {backend} and cannot be loaded without it: {reason(backend, error, {})}"


def _holds(cause: _Cause, backend: str, said: str, environ: Mapping[str, str]) -> bool:
    is_set = cause.variable is None or cause.variable in environ
    return cause.backend in ("", backend) and is_set and re.search(cause.pattern, said) is not None
