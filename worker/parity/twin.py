"""The F32 twin of a GGUF: its metadata and tokenizer, with the weights of the reference.

Owns which tensor goes where; the copying is gguf_copy.py's. On it, both sides compute with the same numbers, so that
what is left between them is the computation alone.
"""

from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from worker.errors import WorkerError
from worker.model.gguf import read_header
from worker.model.info import read_info
from worker.parity.gguf_copy import rewrite
from worker.parity.naming import NO_COUNTERPART, Naming, not_comparable

_FILE_TYPE = "general.file_type"
_ALL_F32 = 0
"""LLAMA_FTYPE_ALL_F32."""


class Tensors(Protocol):
    """A checkpoint's tensors: those of reference/tensors.py, or a few in memory."""

    @property
    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> NDArray[np.float32]:
        """Numpy shape [out, in]. Raises: KeyError for a name that is not in `names`."""
        ...


def write_twin(gguf: Path, tensors: Tensors, target: Path) -> None:
    """Write `target`: all of `gguf` but its weights, which are those of `tensors` as F32; one at a time in memory.

    Raises: WorkerError for another architecture than llama and where the checkpoint lacks a tensor; as `rewrite`.
    """
    info = read_info(gguf)
    why = not_comparable(info)
    if why:
        raise WorkerError(f"{gguf}: {why}")
    naming = Naming.of(info)
    sources = naming.by_gguf_name(tensors.names)
    wanted = [tensor.name for tensor in info.tensors if tensor.name not in NO_COUNTERPART]
    missing = [name for name in wanted if name not in sources]
    if missing:
        raise WorkerError(f"{gguf}: the reference has no tensor for {missing[0]!r}; is it the same model?")
    weights = _Weights(naming, tensors, {name: sources[name] for name in wanted})
    rewrite(gguf, target, metadata=_file_type(gguf), tensors=weights)


class _Weights(Mapping[str, NDArray[np.float32]]):
    """The reference's weights under the GGUF's names and in its row order; each is read when it is asked for."""

    def __init__(self, naming: Naming, tensors: Tensors, sources: Mapping[str, str]) -> None:
        self._naming = naming
        self._tensors = tensors
        self._sources = sources

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._naming.in_gguf_order(name, self._tensors.read(self._sources[name]))

    def __contains__(self, name: object) -> bool:
        # Mapping's own would read the tensor.
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _file_type(gguf: Path) -> dict[str, object]:
    """The key that says how a file is quantised, where it has one."""
    with gguf.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        has_file_type = read_header(data, gguf).metadata.number(_FILE_TYPE, 2**32 - 1, low=0, default=-1) >= 0
    return {_FILE_TYPE: _ALL_F32} if has_file_type else {}
