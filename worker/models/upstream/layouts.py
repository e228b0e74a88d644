"""The release that this program was written against, and the sizes of the structs that it passes to llama.cpp."""

PINNED_VERSION = "0.3.36"
"""The version of llama-cpp-python, as in pyproject.toml: names, layouts and log lines of the library drift between
releases."""

STRUCT_SIZES = {
    "llama_model_params": 80,
    "llama_context_params": 160,
    "llama_model_quantize_params": 64,
    "llama_batch": 56,
}
"""sizeof() in the C headers of that version, 64 bit."""
