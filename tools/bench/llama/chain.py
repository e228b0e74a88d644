"""llama.cpp's own sampler chains: the peer that our samplers are timed and checked against.

A chain belongs to one thread.
"""

import ctypes
import functools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from types import TracebackType
from typing import Any, Self

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.llama.context import Context
from worker.llama.library import open_library
from worker.wire.jobs import TokenId

Stage = Callable[[], Any]
"""Makes one sampler, which the chain then owns: a llama_sampler_init_* with its arguments. Any: an opaque pointer."""
Logits = NDArray[np.float32]

_ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data (llama.h)."""


def greedy() -> Any:
    """The stage that selects the highest logit. Source: llama_sampler_init_greedy."""
    return capi.llama_sampler_init_greedy()


def temp(temperature: float) -> Stage:
    """Divide the logits by what is above 0; the library takes 0 for greedy."""
    return functools.partial(capi.llama_sampler_init_temp, temperature)


def top_p(share: float) -> Stage:
    """Keep the nucleus, at least one token."""
    return functools.partial(capi.llama_sampler_init_top_p, share, 1)


def dist(seed: int) -> Stage:
    """Draw from what is left. For LLAMA_DEFAULT_SEED, the largest u32, the library draws a seed."""
    return functools.partial(capi.llama_sampler_init_dist, seed)


class Chain:
    """The stages in their order, for logits of `n_vocab` tokens. Use as a context manager.

    To sample, its last stage must be `greedy` or a `dist`; else the library aborts the process.
    """

    def __init__(self, n_vocab: int, stages: Seq[Stage]) -> None:
        open_library()
        self._handle: Any = capi.llama_sampler_chain_init(capi.llama_sampler_chain_default_params())
        for stage in stages:
            sampler = stage()
            # NULL is a falsy pointer object here, not None; in a chain it would crash the process.
            assert sampler, "llama.cpp has made no sampler of a stage's arguments"
            capi.llama_sampler_chain_add(self._handle, sampler)
        self._all_ids = np.arange(n_vocab, dtype=np.int32)
        rows = np.zeros(n_vocab, _ROW)
        self._ids, self._logits = rows["id"], rows["logit"]
        # The pointer keeps the rows alive.
        self._data = rows.ctypes.data_as(capi.llama_token_data_p)
        self._array = capi.llama_token_data_array()

    def sample(self, logits: Logits) -> TokenId:
        """The token the chain selects, which it then accepts: what `sample_output` does, for any row of logits.

        `logits`: float32[n_vocab], only read. They hold no NaN: the library's sort would leave its array, and to look
        for one here would be timed as the library's own work.
        """
        left = self.apply(logits)
        token = TokenId(left.data[left.selected].id)
        self.accept(token)
        return token

    def sample_output(self, context: Context, index: int) -> TokenId:
        """The same for a row of the context's last decode, all of it in the library.

        `index`: one that this decode returned; for another the process would abort. Source: llama_sampler_sample.
        """
        return TokenId(capi.llama_sampler_sample(self._handle, context.handle, index))

    def apply(self, logits: Logits) -> Any:
        """The llama_token_data_array after all stages, valid until the next call. Any: opaque pointers of the library.

        Arguments as for `sample`, which says what they must not hold. Source: llama_sampler_apply.
        """
        array = self._array
        # As llama_sampler_sample does for every token; the stages before have sorted the ids.
        self._ids[:] = self._all_ids
        self._logits[:] = logits
        array.data, array.size, array.selected, array.sorted = self._data, len(self._ids), -1, False
        capi.llama_sampler_apply(self._handle, ctypes.byref(array))
        return array

    def accept(self, token: TokenId) -> None:
        """Pass the accepted token to the stages; penalties look back on it. Source: llama_sampler_accept."""
        capi.llama_sampler_accept(self._handle, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Free the chain and its samplers."""
        capi.llama_sampler_free(self._handle)
