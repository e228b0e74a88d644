"""The F32 copy of a GGUF: its metadata and tokenizer, with the weights of the reference.

Both sides compute with the same numbers on it, so that what is left between them is the computation alone. Refuses
files that are split.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.gguf_reader import ReaderField, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from parity.gguf_reader import GgufReader
from parity.naming import NO_COUNTERPART, Naming, not_comparable
from worker.errors import BadModelFile, UsageError, WorkerError
from worker.models.facts.info import read_info

_AT_ONCE = 1 << 20
"""This many numbers are de-quantised at once: 4 MB, plus temporary arrays of the gguf package."""

_FILE_TYPE, _ALL_F32 = "general.file_type", 0
"""The key that says how a file is quantised, and LLAMA_FTYPE_ALL_F32."""

_HEADER = "GGUF."
"""The reader's own fields begin so: version and counts, which are no metadata."""

Weights = Mapping[str, Callable[[], NDArray[np.float32]]]
"""Tensor name → what reads its new values, in numpy's shape."""


class Tensors(Protocol):
    """A checkpoint's tensors: those of reference/tensors.py, or a few in memory."""

    @property
    def names(self) -> frozenset[str]: ...

    def read(self, name: str) -> NDArray[np.float32]:
        """Numpy shape [out, in]. Raises: KeyError for a name that is not in `names`."""
        ...


def write_f32_copy(gguf: Path, tensors: Tensors, target: Path) -> None:
    """Write `target`: all of `gguf` but its weights, which are those of `tensors` as F32.

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

    def read(name: str) -> NDArray[np.float32]:
        return naming.in_gguf_order(name, tensors.read(sources[name]))

    reader = open_gguf(gguf)
    metadata = {_FILE_TYPE: _ALL_F32} if _FILE_TYPE in reader.fields else {}
    _rewrite(reader, target, metadata, {name: partial(read, name) for name in wanted})


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: Mapping[str, object] | None = None,
    tensors: Weights | None = None,
    keeps: Callable[[str], bool] = lambda _: True,
) -> None:
    """Write `target`: `source` with other values for keys and tensors that it has, all else byte for byte.

    A key keeps its type. New tensors are stored as F32, and each is read when it is written; those whose names `keeps`
    denies are left out. Raises: UsageError for a tensor of another shape and a key that cannot be copied; as
    `open_gguf`. Then there is no `target`.
    """
    reader = open_gguf(source)
    reader.tensors = [tensor for tensor in reader.tensors if keeps(tensor.name)]
    _rewrite(reader, target, metadata or {}, tensors or {})


def open_gguf(path: Path) -> GgufReader:
    """The gguf package's reader over a file that has passed our own checks. It takes a second to read a vocabulary.

    Raises: as `worker.models.facts.info.read_info`; BadModelFile for a split model.
    """
    n_parts = len(read_info(path).part_paths)
    if n_parts > 1:
        raise BadModelFile(f"{path}: split into {n_parts} files; join them first: llama-gguf-split --merge")
    return GgufReader(path)


def row_blocks(tensor: ReaderTensor) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """A tensor, de-quantised, some rows at a time: which, and [n_rows, row length]. A vector is one row, the matrices
    of a stack are one below the other.

    Raises: BadModelFile for a type that the gguf package cannot de-quantise.
    """
    stored = tensor.data.reshape(-1, tensor.data.shape[-1])
    n_rows = max(1, _AT_ONCE // int(tensor.shape[0]))
    for first in range(0, len(stored), n_rows):
        rows = slice(first, min(first + n_rows, len(stored)))
        try:
            yield rows, dequantize(stored[rows], tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise BadModelFile(f"tensor {tensor.name!r}: type {kind} cannot be de-quantised") from None


def shape_of(tensor: ReaderTensor) -> tuple[int, ...]:
    """The shape in numpy's order, with the row length last; in the file it is first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _rewrite(reader: GgufReader, target: Path, metadata: Mapping[str, object], tensors: Weights) -> None:
    assert metadata.keys() <= reader.fields.keys()
    assert tensors.keys() <= {tensor.name for tensor in reader.tensors}
    try:
        _write(reader, target, metadata, tensors)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _write(reader: GgufReader, target: Path, metadata: Mapping[str, object], tensors: Weights) -> None:
    # The writer would put the architecture first, and skips an empty one; the copy has it where the source has.
    writer = GGUFWriter(target, arch="")
    for key, field in reader.fields.items():
        if not key.startswith(_HEADER):
            if not field.data:
                raise UsageError(f"metadata key {key!r} is an empty array, which the gguf package cannot write")
            kind, *item_kinds = field.types
            writer.add_key_value(key, metadata.get(key, _as_is(field)), kind, *item_kinds)
    alignment = writer.kv_data[0].get("general.alignment")
    writer.data_alignment = int(alignment.value) if alignment else reader.alignment
    for tensor in reader.tensors:
        is_new = tensor.name in tensors
        kind = GGMLQuantizationType.F32 if is_new else tensor.tensor_type
        n_bytes = 4 * tensor.n_elements if is_new else tensor.n_bytes
        # float32 here only says that the shape counts numbers, not bytes; `kind` is what is written.
        writer.add_tensor_info(tensor.name, shape_of(tensor), np.dtype(np.float32), n_bytes, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in reader.tensors:
            writer.write_tensor_data(_new(tensor, tensors[tensor.name]()) if tensor.name in tensors else tensor.data)
    finally:
        writer.close()


def _as_is(field: ReaderField) -> Any:
    """Strings as their bytes: a vocabulary may hold some that are no UTF-8. Any: whatever type the key has."""
    if field.types[-1] is not GGUFValueType.STRING:
        return field.contents()
    strings = [field.parts[part].tobytes() for part in field.data]
    return strings if field.types[0] is GGUFValueType.ARRAY else strings[0]


def _new(tensor: ReaderTensor, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if values.shape != shape_of(tensor):
        raise UsageError(f"tensor {tensor.name!r} has shape {shape_of(tensor)}; the new values have {values.shape}")
    return np.ascontiguousarray(values, dtype=np.float32)
