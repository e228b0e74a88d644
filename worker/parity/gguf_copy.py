"""Copies of a GGUF file in which named keys and tensors have other values, and its tensors as float32.

Owns the layout of a copy; the format itself is the gguf package's, the check of a file is info.py's. Refuses to know
what a tensor means (naming.py), and files that are split. A copy has one tensor in memory at a time.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.gguf_reader import ReaderField, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from worker.errors import BadModelFile, UsageError
from worker.model.info import read_info

_AT_ONCE = 1 << 20
"""Numbers de-quantised at once: 4 MB, and the gguf package's own arrays on the way there."""

_HEADER = "GGUF."
"""The reader's own fields: version and counts, which are no metadata."""


def rewrite(
    source: Path,
    target: Path,
    *,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
) -> None:
    """Write `target`: `source` with the values of `metadata` (types in the file stay as they are) and of `tensors`
    (numpy shape, stored as F32), all else byte for byte. `tensors` is asked for one tensor at a time.

    Raises: UsageError for a name that `source` lacks, another shape, a value that is not of its key's type;
    BadModelFile, ModelNotFound for a source that is no whole model. Then there is no `target`.
    """
    reader = open_gguf(source)
    metadata, tensors = metadata or {}, tensors or {}
    _check_names(source, "metadata key", metadata, [key for key in reader.fields if not key.startswith(_HEADER)])
    _check_names(source, "tensor", tensors, [tensor.name for tensor in reader.tensors])
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target}: a copy cannot replace the file it is made from; name another")
    try:
        _write(reader, target, metadata, tensors)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def tensor_names(path: Path) -> list[str]:
    """In the order of the file. Raises: as `worker.model.info.read_info`."""
    return [tensor.name for tensor in read_info(path).tensors]


def read_tensor(path: Path, name: str) -> NDArray[np.float32]:
    """One tensor, de-quantised, numpy shape. For many of a file: `open_gguf` once, then `dequantised`.

    Raises: UsageError where there is none of that name; as `open_gguf`.
    """
    tensors = {tensor.name: tensor for tensor in open_gguf(path).tensors}
    _check_names(path, "tensor", [name], tensors)
    return dequantised(tensors[name])


def open_gguf(path: Path) -> GGUFReader:
    """The gguf package's reader over a file that has passed our own checks. It takes 2 s to read a vocabulary.

    Raises: as `worker.model.info.read_info`; BadModelFile for a split model.
    """
    n_parts = len(read_info(path).part_paths)
    if n_parts > 1:
        raise BadModelFile(f"{path}: split into {n_parts} files; join them first: llama-gguf-split --merge")
    return GGUFReader(path)


def dequantised(tensor: ReaderTensor) -> NDArray[np.float32]:
    """All of a tensor, a copy, numpy shape. Raises: as `row_blocks`."""
    shape = shape_of(tensor)
    whole = np.empty((prod(shape[:-1]), shape[-1]), dtype=np.float32)
    for rows, block in row_blocks(tensor):
        whole[rows] = block
    return whole.reshape(shape)


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
    """In numpy's order, the row length last; the file has it first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _check_names(path: Path, what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise UsageError(f"{path}: has no {what} {unknown[0]!r}; only what is there can be read or replaced")


def _write(
    reader: GGUFReader, target: Path, metadata: Mapping[str, object], tensors: Mapping[str, NDArray[np.float32]]
) -> None:
    # The writer would put the architecture first, and skips an empty one; the copy has it where the source has.
    writer = GGUFWriter(target, arch="")
    for key, field in reader.fields.items():
        if not key.startswith(_HEADER):
            _add(writer, field, metadata)
    alignment = writer.kv_data[0].get("general.alignment")
    writer.data_alignment = int(alignment.value) if alignment else reader.alignment
    for tensor in reader.tensors:
        _announce(writer, tensor, is_new=tensor.name in tensors)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in reader.tensors:
            writer.write_tensor_data(_new(tensor, tensors[tensor.name]) if tensor.name in tensors else tensor.data)
    except struct.error as error:
        raise UsageError(f"{target}: a new value does not fit its key's type: {error}") from None
    finally:
        writer.close()


def _add(writer: GGUFWriter, field: ReaderField, metadata: Mapping[str, object]) -> None:
    kind, *item_kinds = field.types
    if not field.data:
        raise UsageError(f"metadata key {field.name!r} is an empty array, which the gguf package cannot write")
    value = _checked(field, metadata[field.name]) if field.name in metadata else _as_is(field)
    writer.add_key_value(field.name, value, kind, *item_kinds)


def _checked(field: ReaderField, value: object) -> object:
    """A new value, refused unless it is of the Python type of the old one, item by item. Raises: UsageError."""
    is_array = field.types[0] is GGUFValueType.ARRAY
    wanted = type(field.contents(0)) if is_array else type(field.contents())
    items = (value if isinstance(value, list) else []) if is_array else [value]
    if not items or any(type(item) is not wanted for item in items):
        how_many = "a list of at least one" if is_array else "one"
        raise UsageError(f"metadata key {field.name!r} takes {how_many} {wanted.__name__}, not {type(value).__name__}")
    return value


def _as_is(field: ReaderField) -> Any:
    """Strings as their bytes: a vocabulary may hold some that are no UTF-8. Any: whatever type the key has."""
    if field.types[-1] is not GGUFValueType.STRING:
        return field.contents()
    strings = [field.parts[part].tobytes() for part in field.data]
    return strings if field.types[0] is GGUFValueType.ARRAY else strings[0]


def _announce(writer: GGUFWriter, tensor: ReaderTensor, *, is_new: bool) -> None:
    kind = GGMLQuantizationType.F32 if is_new else tensor.tensor_type
    n_bytes = 4 * tensor.n_elements if is_new else tensor.n_bytes
    # float32 here only says that the shape counts numbers, not bytes; `kind` is what is written.
    writer.add_tensor_info(tensor.name, shape_of(tensor), np.dtype(np.float32), n_bytes, raw_dtype=kind)


def _new(tensor: ReaderTensor, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if values.shape != shape_of(tensor):
        raise UsageError(f"tensor {tensor.name!r} has shape {shape_of(tensor)}; the new values have {values.shape}")
    return np.ascontiguousarray(values, dtype=np.float32)
