"""The library's candidate array (llama_token_data_array) over rows that numpy reads and writes.

Owns the rows' layout and the call; what is written into them and read out is the caller's. One thread at a time.
"""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi

_ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data (llama.h)."""


class Candidates:
    """`n` rows; `ids` (int32[n]) and `logits` (float32[n]) are views into them."""

    def __init__(self, n: int) -> None:
        rows = np.zeros(n, _ROW)
        self.ids, self.logits = rows["id"], rows["logit"]
        # The pointer keeps the array alive.
        self._data = rows.ctypes.data_as(capi.llama_token_data_p)
        self._array = capi.llama_token_data_array()

    def apply(self, sampler: Any) -> Any:
        """The llama_token_data_array after the sampler, from all rows unsorted; valid until the next call.

        Any: opaque pointers of the library. Source: llama_sampler_apply.
        """
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, len(self.ids), -1, False
        capi.llama_sampler_apply(sampler, ctypes.byref(array))
        return array
