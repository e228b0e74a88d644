"""Level `weights`: every tensor of the GGUF, de-quantised, against the reference's.

Some rows are in memory at a time, and one tensor of the reference.

Two errors, because each finds what the other hides: RMS(Δ) / RMS(reference) of a tensor sees noise and rows in another
order; the largest |Δ| over the largest weight of its block sees one wrong number among millions. A quantised format
promises the second: its step is a fixed part of the block's largest weight.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, sqrt
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf.gguf_reader import ReaderTensor
from numpy.typing import NDArray

from parity.bounds import Bounds
from parity.f32_copy import Tensors, open_gguf, row_blocks, shape_of
from parity.naming import EMBEDDING, NO_COUNTERPART, OUTPUT, Naming, not_comparable
from parity.report import Check, Level, Table, judged, not_run
from worker.models.facts.info import read_info

NAME = "weights"
_N_WORST = 20


@dataclass(frozen=True, slots=True)
class TensorError:
    """The difference between a tensor of the GGUF and the reference's."""

    name: str
    kind: str
    """The type it is stored in."""
    squares: float
    """Sum of Δ²."""
    reference_squares: float
    largest: float
    """Largest |Δ|."""
    of_block: float
    """Largest |Δ| over the largest |reference| of its block."""
    place: str
    """Row and column where `of_block` is, counted from 0, rows in the GGUF's order."""

    @property
    def relative(self) -> float:
        """RMS(Δ) / RMS(reference)."""
        return _ratio(sqrt(self.squares), sqrt(self.reference_squares))


def run(gguf: Path, tensors: Tensors, bounds: Bounds, *, made_from_this_file: bool) -> Level:
    """Compare all tensors. `made_from_this_file`: the reference is this GGUF de-quantised, so that nothing may differ.

    Not run for another architecture than llama and for mixtures of experts. Raises: as `open_gguf`.
    """
    info = read_info(gguf)
    why = not_comparable(info)
    if why:
        return not_run(NAME, why)
    naming = Naming.of(info)
    sources = naming.by_gguf_name(tensors.names)
    stored = {tensor.name: tensor for tensor in open_gguf(gguf).tensors}
    errors: list[TensorError] = []
    misshapen: list[str] = []
    for name, source, tensor in _pairs(stored, sources):
        reference = naming.in_gguf_order(name, tensors.read(source))
        if reference.shape == shape_of(tensor):
            errors.append(compare(name, tensor, reference))
        else:
            misshapen.append(f"{name}: {shape_of(tensor)}, the reference has {reference.shape}")
    present = [_presence(bounds, stored, sources), _count(bounds, "tensors of another shape", "shape", misshapen)]
    return _level(errors, present, bounds, made_from_this_file=made_from_this_file)


def compare(name: str, tensor: ReaderTensor, reference: NDArray[np.float32]) -> TensorError:
    """The errors of one tensor; `reference` has its shape and row order. What is no number makes an error NaN."""
    expected = reference.reshape(-1, reference.shape[-1])
    squares = reference_squares = largest = 0.0
    worst: list[tuple[float, str]] = []
    for rows, found in row_blocks(tensor):
        with np.errstate(invalid="ignore", over="ignore"):
            delta = np.abs(found - expected[rows])
            squares += float(np.square(delta, dtype=np.float64).sum())
            reference_squares += float(np.square(expected[rows], dtype=np.float64).sum())
            largest = float(np.maximum(largest, delta.max()))
        worst.append(_worst_of_block(delta, expected[rows], _block_length(tensor), rows.start))
    # Unlike max(), argmax takes NaN for the largest.
    of_block, place = worst[int(np.argmax([share for share, _ in worst]))]
    kind = tensor.tensor_type.name
    return TensorError(name, kind, squares, reference_squares, largest, of_block, place)


def _worst_of_block(
    delta: NDArray[np.float32], expected: NDArray[np.float32], block: int, first_row: int
) -> tuple[float, str]:
    """The largest `delta` over the largest `expected` of its block, and where it is."""
    errors = delta.reshape(-1, block).max(axis=1)
    sizes = np.abs(expected).reshape(-1, block).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0, errors / sizes)
    at = int(np.argmax(shares))
    column_in_block = int(np.argmax(delta.reshape(-1, block)[at]))
    row, column = divmod(at * block + column_in_block, delta.shape[1])
    return float(shares[at]), f"row {first_row + row}, column {column}"


def _block_length(tensor: ReaderTensor) -> int:
    """Numbers that share a scale; all of a row where each has its own."""
    block, _ = GGML_QUANT_SIZES[tensor.tensor_type]
    return int(block) if block > 1 else int(tensor.shape[0])


def _pairs(stored: Mapping[str, ReaderTensor], sources: Mapping[str, str]) -> Iterator[tuple[str, str, ReaderTensor]]:
    """(name to show, checkpoint's name, tensor of the GGUF) of all that can be compared."""
    for name, tensor in stored.items():
        if name in sources:
            yield name, sources[name], tensor
    if OUTPUT not in stored and sources.get(OUTPUT) != sources.get(EMBEDDING) and EMBEDDING in stored:
        yield f"{EMBEDDING} as {OUTPUT}", sources[OUTPUT], stored[EMBEDDING]


def _presence(bounds: Bounds, stored: Iterable[str], sources: Iterable[str]) -> Check:
    names = set(stored)
    lacking = [f"{name}: not in the reference" for name in sorted(names - set(sources) - set(NO_COUNTERPART))]
    lacking += [f"{name}: not in the GGUF" for name in sorted(set(sources) - names - {OUTPUT})]
    return _count(bounds, "tensors on one side only", "one_side", lacking)


def _count(bounds: Bounds, what: str, key: str, found: Sequence[str]) -> Check:
    return bounds.check(what, len(found), f"{NAME}.{key}", note=found[0] if found else "")


def _level(
    errors: Sequence[TensorError], present: Sequence[Check], bounds: Bounds, *, made_from_this_file: bool
) -> Level:
    worst_first = sorted(errors, key=lambda error: _rank(error.relative), reverse=True)
    kinds = {kind: [error for error in worst_first if error.kind == kind] for kind in sorted(_kinds(errors))}
    checks = list(present)
    for kind, of_kind in kinds.items():
        checks += _checks(kind, of_kind, bounds, made_from_this_file=made_from_this_file)
    summary = f"{len(errors)} tensors, largest relative error {worst_first[0].relative:.2g}" if errors else ""
    return judged(
        NAME,
        summary + (", the reference was made from this file" if made_from_this_file else ""),
        checks if errors else present,
        tables=(_by_kind(kinds), _worst(worst_first)),
    )


def _checks(
    kind: str, worst_first: Sequence[TensorError], bounds: Bounds, *, made_from_this_file: bool
) -> tuple[Check, Check]:
    """The checks of all tensors of one type, with the worst tensor by each error."""
    same = (f"{NAME}.same",) if made_from_this_file else ()
    whole = worst_first[0]
    single = max(worst_first, key=lambda error: _rank(error.of_block))
    return (
        bounds.check(
            f"{kind}: RMS(Δ) / RMS(reference) of a tensor",
            whole.relative,
            *(same or (f"{NAME}.{kind}", f"{NAME}.other")),
            note=whole.name,
        ),
        bounds.check(
            f"{kind}: |Δ| / largest weight of its block",
            single.of_block,
            *(same or (f"{NAME}.of_block.{kind}", f"{NAME}.of_block.other")),
            note=f"{single.name}, {single.place}",
        ),
    )


def _by_kind(kinds: Mapping[str, Sequence[TensorError]]) -> Table:
    rows = [
        (
            kind,
            str(len(errors)),
            _number(_pooled(errors)),
            _number(errors[0].relative),
            errors[0].name,
            _number(max(errors, key=lambda error: _rank(error.of_block)).of_block),
        )
        for kind, errors in kinds.items()
    ]
    columns = ("type", ">tensors", ">relative error, all", ">of the worst", "worst", ">of a block")
    return Table("Weights by type", columns, tuple(rows), "Relative: RMS(Δ) / RMS(reference).")


def _worst(worst_first: Sequence[TensorError]) -> Table:
    rows = [
        (error.name, error.kind, _number(error.relative), _number(error.largest), _number(error.of_block), error.place)
        for error in worst_first[:_N_WORST]
    ]
    columns = ("tensor", "type", ">relative error", ">largest |Δ|", ">of a block", "where")
    left_out = len(worst_first) - len(rows)
    return Table("Weights, worst first", columns, tuple(rows), f"{left_out} more." if left_out else "")


def _pooled(errors: Sequence[TensorError]) -> float:
    return _ratio(sqrt(sum(error.squares for error in errors)), sqrt(sum(error.reference_squares for error in errors)))


def _kinds(errors: Iterable[TensorError]) -> set[str]:
    return {error.kind for error in errors}


def _ratio(error: float, size: float) -> float:
    """error / size, where a size of 0 allows no error."""
    if size == 0:
        return 0.0 if error == 0 else inf
    return error / size


def _rank(error: float) -> float:
    """The key for sorting: NaN is the worst value."""
    return inf if isnan(error) else error


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"
