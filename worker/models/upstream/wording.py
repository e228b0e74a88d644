"""The words of llama.cpp's own log and the names of its files that are read, for want of another way to ask.

tests/llama compares them with the real library where a CPU can be brought to say them, and looks for the others in its
files.
"""

import re

BUFFER = re.compile(r"^\w+: +(?P<name>\S+) +(?P<kind>\S.*?) buffer size = +(?P<mib>[\d.]+) MiB")
"""Each buffer that a load and a new context allocate (llama-model.cpp, llama-kv-cache.cpp, llama-context.cpp)."""

OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
"""llama_model::load_tensors."""

ALLOCATION_FAILED = re.compile(r"failed to allocate (?:\S+ )?buffer of size (\d+)")
"""ggml's backends, and ggml-backend.cpp."""

WITHOUT_FLASH = re.compile(r"Flash Attention not supported, set to disabled|flash_attn is not compatible with")
"""llama_context and llama_init_from_model."""

NO_REASON = re.compile(r": failed to (load model|read (key-value pairs|tensor info|tensor data))")
"""The last lines of a load that failed; the reason is in the one before (gguf.cpp, llama-model-loader.cpp)."""

FALSE_ALARM = "possible training context overflow"
"""The library's warning about more cells than the model was trained on: jobs share them, and none uses more than
that."""

BACKEND_FILE = re.compile(r"libggml-(?P<backend>[a-z]+)(?:-(?P<variant>.+))?\.(?:so|dylib)")
"""libggml-vulkan.so, libggml-cpu-zen4.so; not libggml-cpu.so.0, which is the same again."""

BACKEND_LOADED = re.compile(r"^load_backend: loaded \S+ backend from (?P<path>.+)$")
"""ggml-backend-reg.cpp."""

NO_DEVICES = "No devices found"
"""ggml-vulkan.cpp says so at the level of ordinary words."""
