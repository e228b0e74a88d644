"""The libraries of this room: there, or refused in one line; and quiet.

The other modules of the room import torch and transformers from here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from worker.errors import UsageError

try:
    import torch
    import transformers
    from tokenizers import AddedToken, pre_tokenizers
    from transformers.integrations.gguf import read_gguf_metadata
except ImportError as error:
    raise UsageError(f"a reference needs {error.name}: pip install -e '.[parity]' in a checkout") from error

__all__ = [
    "UNREADABLE",
    "AddedToken",
    "failure",
    "pre_tokenizers",
    "quiet",
    "read_gguf_metadata",
    "torch",
    "transformers",
]

UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError, StrictDataclassError)
"""The errors of reading a checkpoint whose files transformers does not expect."""


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and nothing below an error from transformers meanwhile: its advice is for training."""
    log = transformers.utils.logging
    verbosity, had_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if had_bars:
            log.enable_progress_bar()


def failure(error: Exception) -> str:
    """The first line of what a library says: the rest is advice that fits its own callers."""
    return next(iter(str(error).splitlines()), type(error).__name__)
