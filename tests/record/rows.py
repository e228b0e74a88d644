"""A record: a file of rows, each what was asked and what the answer was."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
"""An object of JSON."""


def read(path: Path) -> list[Json]:
    """Return the rows. One that was never recorded has no "answer"."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: Sequence[Json]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def differences(recorded: Sequence[Json], found: Sequence[Json]) -> Iterator[str]:
    """Yield a text for each row whose answer is another: the question, and each member that differs."""
    for old, new in zip(recorded, found, strict=True):
        if old.get("answer") != new["answer"]:
            yield f"{json.dumps(new['ask'], ensure_ascii=False)[:400]}\n{_difference(old.get('answer'), new['answer'])}"


def _difference(old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"  was {old!r:.600}\n  is  {new!r:.600}"
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "\n".join(
        f"  {name} was {_about(old.get(name), new.get(name))}\n  {name} is  {_about(new.get(name), old.get(name))}"
        for name in names
    )


def _about(value: Any, other: Any) -> str:
    """Return the part of a text in which it differs from another."""
    text, against = str(value), str(other)
    same = next((at for at, (a, b) in enumerate(zip(text, against, strict=False)) if a != b), 0)
    start = max(0, same - 80)
    return f"{'…' if start else ''}{text[start : start + 400]!r}"
