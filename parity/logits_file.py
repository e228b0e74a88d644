"""The reference's logits as a .safetensors file, so that later runs need neither torch nor the checkpoint.

Some positions of the long windows are kept in full (evidence.spread); of every other one the logarithm of the sum of
all exponentials, the highest logits, and the logit of the token that follows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from parity.compare import KnownRow, Positions, compare_full, compare_partial, logsumexp
from parity.evidence import FullLogits, Window, spread
from worker.engine.sampling.shortlist import highest_first
from worker.errors import UsageError

FORMAT = "llorch-parity-logits/1"
N_TOP = 256

_DIGEST = "sha256"
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the logits. Digests are sha256 in hexadecimal."""

    made_from: str
    """The name of the GGUF that the checkpoint was made from, or empty."""
    made_from_sha256: str
    """Its digest, or empty."""
    checkpoint_sha256: str
    text_digest: str
    """The digest of the evaluation text and prompts."""
    dtype: str
    """The float type of the reference."""
    n_vocab: int
    model_type: str
    versions: Mapping[str, str]
    """Package → version."""
    created: str
    """Date and time, ISO 8601."""


class _Head(msgspec.Struct, frozen=True):
    """The metadata other than format and digest, each field as JSON."""

    windows: tuple[Window, ...]
    hard_ids: tuple[tuple[int, ...], ...]
    provenance: Provenance


def write_logits_file(path: Path, full: FullLogits, hard_ids: Sequence[Sequence[int]], provenance: Provenance) -> None:
    """Write `full` in brief. `hard_ids`: the reference tokenizer's ids of the hard texts, in their order."""
    head = _Head(tuple(full.windows), tuple(map(tuple, hard_ids)), provenance)
    metadata = {name: msgspec.json.encode(value).decode() for name, value in msgspec.structs.asdict(head).items()}
    metadata["format"] = FORMAT
    arrays = _arrays(full)
    save_file(arrays, path, metadata | {_DIGEST: _digest(arrays, metadata)})


class LogitsFile:
    """Made by `open`; a ReferenceLogits. All of it is in memory."""

    def __init__(self, head: _Head, arrays: Arrays) -> None:
        self._head = head
        self._arrays = arrays
        self._full_rows = dict(zip(spread(head.windows), arrays["full_rows"], strict=True))
        self._starts = list(accumulate((len(window.tokens) for window in head.windows), initial=0))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read and check all of it. Raises: UsageError naming the file and what is wrong with it."""
        metadata, arrays = _read(path)
        if metadata.get("format") != FORMAT:
            raise UsageError(f"{path}: not reference logits of format {FORMAT}; `parity reference` makes them")
        if metadata.pop(_DIGEST, "") != _digest(arrays, metadata):
            raise UsageError(f"{path}: damaged: its contents do not match its digest; make it again")
        return cls(_head(metadata), arrays)

    @property
    def windows(self) -> Sequence[Window]:
        return self._head.windows

    @property
    def hard_ids(self) -> Sequence[Sequence[int]]:
        """The tokens of the hard texts, in their order."""
        return self._head.hard_ids

    @property
    def provenance(self) -> Provenance:
        return self._head.provenance

    def positions(self, window: int, logits: NDArray[np.float32]) -> Positions:
        """See ReferenceLogits."""
        n_vocab, n_tokens = self._head.provenance.n_vocab, len(self.windows[window].tokens)
        if logits.shape != (n_tokens, n_vocab):
            raise ValueError(f"reference has shape {(n_tokens, n_vocab)}, candidate {logits.shape}")
        targets = self.windows[window].targets
        positions = compare_partial([self.known(window, at) for at in range(n_tokens)], logits, targets)
        for (number, at), row in self._full_rows.items():
            if number == window:
                _put(positions, at, compare_full(row[None], logits[at : at + 1], targets[at : at + 1]))
        return positions

    def gap(self, window: int, position: int, token: int) -> float:
        """See ReferenceLogits."""
        known = self.known(window, position)
        full = self._full_rows.get((window, position))
        if full is not None:
            return float(known.logits[0]) - float(full[token])
        if position + 1 < len(self.windows[window].tokens) and self.windows[window].tokens[position + 1] == token:
            return float(known.logits[0]) - known.next_logit
        (places,) = np.nonzero(known.ids == token)
        return float(known.logits[0]) - float(known.logits[places[0] if places.size else -1])

    def known(self, window: int, position: int) -> KnownRow:
        """The highest logits of a row."""
        at = self._starts[window] + position
        arrays = self._arrays
        return KnownRow(
            arrays["top_ids"][at],
            arrays["top_logits"][at],
            float(arrays["logsumexp"][at]),
            float(arrays["next_logits"][at]),
        )

    def full_rows(self) -> Sequence[tuple[int, int, NDArray[np.float32]]]:
        """See ReferenceLogits."""
        return [(window, position, row) for (window, position), row in self._full_rows.items()]


def _put(positions: Positions, at: int, one: Positions) -> None:
    for field in fields(Positions):
        getattr(positions, field.name)[at] = getattr(one, field.name)[0]


def _arrays(full: FullLogits) -> Arrays:
    """Rows of all windows, one after the other; `full_rows` in the order of `spread`."""
    n_top = min(N_TOP, full.n_vocab)
    top_ids, top_logits, sums, next_logits = [], [], [], []
    for number, window in enumerate(full.windows):
        rows = full.rows(number)
        ids = np.array([highest_first(row, n_top) for row in rows])
        top_ids.append(ids.astype(np.int32))
        top_logits.append(np.take_along_axis(rows, ids, axis=1))
        sums.append(np.array([logsumexp(row) for row in rows]))
        next_logits.append(_next_logits(rows, window.targets))
    full_rows = [row for _, _, row in full.full_rows()]
    return {
        "full_rows": np.array(full_rows, dtype=np.float32).reshape(len(full_rows), full.n_vocab),
        "logsumexp": np.concatenate(sums),
        "next_logits": np.concatenate(next_logits),
        "top_ids": np.concatenate(top_ids),
        "top_logits": np.concatenate(top_logits),
    }


def _next_logits(rows: NDArray[np.float32], targets: Sequence[int]) -> NDArray[np.float32]:
    found = np.full(len(rows), np.nan, dtype=np.float32)
    found[: len(targets)] = rows[np.arange(len(targets)), list(targets)]
    return found


def _digest(arrays: Arrays, metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(msgspec.json.encode(sorted(metadata.items())))
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, str], Arrays]:
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(f"{path}: not a complete .safetensors file: {error}") from None


def _head(metadata: Mapping[str, str]) -> _Head:
    """The head of a file with a correct digest, so an error in it is a mistake of this program."""
    of = {
        field.name: msgspec.json.decode(metadata[field.name], type=field.type)
        for field in msgspec.structs.fields(_Head)
    }
    return _Head(**of)
