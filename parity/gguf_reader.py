"""The gguf package without what makes it slow, for our own reading of a GGUF and for transformers'."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import gguf
import numpy as np
from numpy.typing import NDArray


class GgufReader(gguf.GGUFReader):  # type: ignore[misc]  # the package has no types
    """Slices a plain view of the mapped file. The package slices the np.memmap, which costs a microsecond each: of the
    four seconds for a vocabulary of 49,000 tokens, three.
    """

    @property
    def data(self) -> NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._data = np.asarray(mapped)


@contextmanager
def used_by_transformers() -> Iterator[None]:
    """transformers takes from the package, by name, the reader, thrice for a checkpoint, and the names of a model's
    tensors, again for each of its modules, which is most of its time.
    """
    as_it_was = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = GgufReader, cache(gguf.get_tensor_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = as_it_was
