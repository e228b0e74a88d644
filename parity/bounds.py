"""The allowed differences of the two sides: bounds.toml, or the user's own file, as checked values with their reasons.

Every leaf of the file is a table with `at_most` or `at_least` and a `reason`; its key is the path to it, joined by `.`.
A user's file replaces the values it names and may name no others.
"""

import importlib.resources
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Self

from parity.report import Check, Relation
from worker.errors import UsageError


@dataclass(frozen=True, slots=True)
class Bound:
    """One leaf of the file."""

    value: float
    relation: Relation
    reason: str


class Bounds:
    """Made by `load`. `check` is how every level judges a number."""

    def __init__(self, leaves: Mapping[str, Bound]) -> None:
        self._leaves = dict(leaves)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """The built-in bounds, and over them those of `path`. Raises: UsageError naming file, key and remedy."""
        leaves = dict(_leaves(tomllib.loads(built_in().decode()), "bounds.toml"))
        if path is not None:
            own = dict(_leaves(_read(path), str(path)))
            unknown = sorted(own.keys() - leaves.keys())
            if unknown:
                raise UsageError(f"{path}: there is no bound {unknown[0]}; `parity bounds` prints all bounds")
            leaves |= own
        return cls(leaves)

    def check(self, what: str, value: float, *keys: str, note: str = "", allowances: Sequence[str] = ()) -> Check:
        """Check `value` against the first of `keys` that exists: a special bound before the general one. The bounds of
        `allowances` are added to it.

        Raises: KeyError when none of `keys` does, which is a mistake of ours.
        """
        bound = self._allowing(self.bound(*keys), allowances)
        return Check(what, float(value), bound.relation, bound.value, bound.reason, note)

    def bound(self, *keys: str) -> Bound:
        """The first of `keys` that exists. Raises: KeyError."""
        for key in keys:
            if key in self._leaves:
                return self._leaves[key]
        raise KeyError(keys)

    def _allowing(self, bound: Bound, allowances: Sequence[str]) -> Bound:
        more = [self._leaves[key] for key in allowances if key in self._leaves]
        total = sum(each.value for each in more)
        return Bound(
            bound.value + total if bound.relation == "at most" else bound.value - total,
            bound.relation,
            "; and ".join([bound.reason, *(each.reason for each in more)]),
        )


def built_in() -> bytes:
    """bounds.toml as it is shipped."""
    return importlib.resources.files("parity").joinpath("bounds.toml").read_bytes()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: not a bounds file: {error}") from None


def _leaves(table: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Bound]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if not isinstance(value, dict):
            raise UsageError(f"{where}: {key} is not a table; a bound is {{ at_most = 1e-4, reason = '…' }}")
        if "at_most" in value or "at_least" in value or "reason" in value:
            yield key, _bound(value, where, key)
        else:
            yield from _leaves(value, where, f"{key}.")


def _bound(leaf: Mapping[str, Any], where: str, key: str) -> Bound:
    sides = leaf.keys() - {"reason"}
    reason = leaf.get("reason")
    if len(sides) != 1 or not sides <= {"at_most", "at_least"} or not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"{where}: {key} needs exactly one of at_most and at_least, and a reason")
    (side,) = sides
    value = leaf[side]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise UsageError(f"{where}: {key}.{side} is {value!r}; a finite number is needed")
    return Bound(float(value), "at most" if side == "at_most" else "at least", reason.strip())
