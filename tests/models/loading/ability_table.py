"""The tables of docs/reference/model-architectures.md: what the worker can do with models of each architecture, and
which it refuses and why.

    python -m tests.models.loading.ability_table       prints both; it takes a minute or two

A tiny model of each architecture is loaded by the worker's own code (ability_words.py), which says it.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.models.loading.ability_words import VARIANTS
from tests.models.upstream.every_architecture import architectures, reported
from tools.markdown import table
from worker.models.upstream.architectures import OTHER_SHAPES

PROGRAM = "tests.models.loading.ability_words"
UNKNOWN = "(unknown)"
NOT_LOADED = frozenset(("plm",))
"""An architecture of which no tiny model is made that llama.cpp computes."""

Row = tuple[str, ...]
COLUMNS = (
    "architectures",
    "memory of a job",
    "prefixes shared and kept, fair turns",
    "drafts",
    "a long step stops for a newcomer",
    "`--batch-invariant auto` keeps numbers",
)


def main() -> None:
    sys.stdout.write(f"{abilities_table(abilities())}\n\n{refusals_table()}\n")


def served() -> list[str]:
    """The architectures that are not refused by name, and variants of them."""
    known = [name for name in architectures().values() if name not in {*OTHER_SHAPES, *NOT_LOADED, UNKNOWN}]
    return [*known, *(variant for variant in VARIANTS if variant not in known)]


def abilities() -> dict[str, dict[str, Any] | None]:
    """Return what is said of each: of a dense model or, if there is none, of one with experts; None if it ends the
    process.
    """
    names = served()
    dense = reported(PROGRAM, "dense", names)
    others = [name for name, found in dense.items() if found is None or "error" in found]
    return dense | reported(PROGRAM, "experts", others)


def abilities_table(found: dict[str, Any]) -> str:
    """Architectures of which the same is true share a row."""
    groups: dict[Row, list[str]] = defaultdict(list)
    for name, said in found.items():
        groups[_row_of(name, said)].append(name)
    return table(COLUMNS, [(_listed(names), *row) for row, names in groups.items()])


def refusals_table() -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, why in OTHER_SHAPES.items():
        reasons[why].append(name)
    return table(("architectures", "refused because"), [(_listed(names), why) for why, names in reasons.items()])


def _listed(names: Iterable[str]) -> str:
    """A variant has words after its name."""
    return ", ".join(" ".join((f"`{name}`", *more)) for name, *more in map(str.split, sorted(names)))


def _row_of(name: str, said: dict[str, Any]) -> Row:
    off = said["cache_off"]
    prefixes = "yes" if off is None else f"no: it {off.removeprefix(name.split(maxsplit=1)[0]).strip()}"
    if said["has_windows"] and off is None:
        prefixes += "; not with `--swa-full off`"
    return (
        _memory(said),
        prefixes,
        _drafts(name, said["drafts_off"]),
        _yes_or_no(said["stops"]),
        "yes" if said["invariant"] else f"no: {said['why']}",
    )


def _memory(said: dict[str, Any]) -> str:
    parts = [
        *(["cells with windows"] if said["has_windows"] else ["cells"] if said["has_cells"] else []),
        *(["a recurrent state"] if said["has_state"] else []),
        *(["an index"] if said["has_index"] else []),
    ]
    return ", ".join(parts)


def _drafts(name: str, why_off: str | None) -> str:
    if why_off is None:
        return "yes"
    own = name.split(maxsplit=1)[0]
    words = re.sub(f"^{own} ", "it ", why_off).replace(f"{own}'s", "its")
    return f"no: {words}"


def _yes_or_no(is_so: bool) -> str:
    return "yes" if is_so else "no"


if __name__ == "__main__":
    main()
