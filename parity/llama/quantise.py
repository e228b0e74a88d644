"""A GGUF rewritten in another file type by the library's own quantiser.

Any thread, one call at a time.
"""

import os
from pathlib import Path

from llama_cpp import llama_cpp as capi

from worker.errors import ModelLoadFailed, UsageError
from worker.llama.library import open_library

FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "BF16": 32,
    "Q8_0": 7,
    "Q6_K": 18,
    "Q5_K_M": 17,
    "Q4_K_M": 15,
    "Q5_1": 9,
    "Q5_0": 8,
    "Q4_1": 3,
    "Q4_0": 2,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
}
"""llama_ftype (llama.h); none of these needs an importance matrix."""


def quantise(source: Path, target: Path, file_type: str, *, n_threads: int) -> None:
    """Write `source` as `file_type`; weights that are quantised already are de-quantised first. Replaces `target`.

    Tensors whose rows do not fit a block of the type get the library's fallback type; one-dimensional ones stay F32.
    Raises: UsageError for an unknown type or a target that is the source. ModelLoadFailed with the library's last
    error; nothing is left at `target` then. Source: llama_model_quantize.
    """
    if file_type not in FILE_TYPES:
        raise UsageError(f"file type {file_type!r} is not one of {', '.join(FILE_TYPES)}")
    if source.resolve() == target.resolve():
        raise UsageError(f"{source}: a file cannot be quantised onto itself; name another target")
    library = open_library()
    params = _params(FILE_TYPES[file_type], n_threads)
    partial = target.with_name(target.name + ".part")
    try:
        with library.watch() as watch:
            code = int(capi.llama_model_quantize(os.fsencode(source), os.fsencode(partial), params))
        if code != 0:
            said = watch.last_error or "the library gave no reason"
            raise ModelLoadFailed(f"{source}: cannot be written as {file_type}: {said}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _params(ftype: int, n_threads: int) -> object:
    if n_threads < 1:
        raise ValueError(f"threads must be at least 1 (got {n_threads})")
    params = capi.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = n_threads
    params.allow_requantize = True
    return params
