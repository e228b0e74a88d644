"""The release that this program was written against, and limits and enumerations of its headers and sources."""

from typing import Literal

PINNED_VERSION = "0.3.36"
"""The version of llama-cpp-python, as in pyproject.toml: names, layouts and log lines of the library drift between
releases."""

MAX_SEQ_IDS = 256
"""LLAMA_MAX_SEQ (llama-cparams.h): how many sequence ids there are for slots and for what the backend needs beside
them."""

MAX_THREADS = 512
"""GGML_MAX_N_THREADS (ggml.h)."""

CELL_STEP = 256
"""llama.cpp pads its context to a multiple of this (llama-context.cpp)."""

CACHE_TYPE_IDS = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
"""The types that a KV cache may have, as ggml_type (ggml.h)."""

CUDA_ATTENTION_TYPES = frozenset(("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"))
"""The types of K and V that CUDA's flash attention reads: ggml_cuda_fattn_kv_type_supported (fattn.cu)."""

CUDA_ATTENTION_PAIRS = ("f16", "bf16", "q8_0", "q4_0")
"""The types for which it has a kernel for decode steps where K and V both have them: GGML_CUDA_FA_QUANTS
(ggml/CMakeLists.txt)."""

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
"""llama_flash_attn_type (llama.h)."""

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
"""llama_split_mode (llama.h)."""

LOAD_AUTO, LOAD_NONE = -1, 0
"""llama_load_mode (llama.h): map the file where all devices can, or read it."""

MROPE_TYPES = (8, 40)
"""LLAMA_ROPE_TYPE_MROPE and LLAMA_ROPE_TYPE_IMROPE (llama.h): a position is several numbers."""

LOG_LEVELS: tuple[Literal["debug", "info", "warning", "error"], ...] = ("info", "debug", "info", "warning", "error")
"""ggml_log_level (ggml.h) in our words, by number."""
LOG_CONTINUED = 5
"""A text of this level continues the line before it."""

SET_HIDDEN_ROWS = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
GET_HIDDEN_ROWS = "_Z26llama_get_embeddings_nextnP13llama_context"
MEMORY_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
"""The names by which the library exports functions of llama-ext.h, in C++."""

STATE_MAGIC = 0xAF143CD8
"""The first number in the saved state of a sequence (llama-context.cpp)."""
