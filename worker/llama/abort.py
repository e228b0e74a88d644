"""Stopping a decode that runs: a flag the library looks at, without the interpreter lock.

Owns the flag and the callback, which live as long as the context that was given them. `up` and `down` from any thread.
"""

import ctypes
from typing import Any

from llama_cpp import llama_cpp as capi


class AbortFlag:
    """strlen of "" is 0, go on; of "\\x01" it is 1, stop. A Python callback would be called some 500 times a token."""

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)
        self._callback = ctypes.cast(ctypes.CDLL(None).strlen, capi.ggml_abort_callback)

    def watched_by(self, handle: Any) -> None:
        """Let a context look at it before each graph node. Any: an opaque pointer.

        Backends other than CPU and Metal never look. Source: llama_set_abort_callback.
        """
        capi.llama_set_abort_callback(handle, self._callback, ctypes.cast(self._flag, ctypes.c_void_p))

    def up(self) -> None:
        self._flag[0] = b"\x01"

    def down(self) -> None:
        self._flag[0] = b"\x00"
