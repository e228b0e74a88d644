"""The page of log events: their levels and fields as they are written in the worker's modules, and their occasions."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from tools.markdown import table
from tools.reference.text import TEXTS, code, codes, page, sentence
from worker.observe.log_lines import LogEvent

_WORKER: Final = Path(__file__).parents[2] / "worker"
_LEVELS: Final = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}


@dataclass(slots=True)
class Written:
    """The levels and fields with which the modules write an event."""

    levels: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)

    def add(self, level: str, names: Iterator[str]) -> None:
        self.levels += [level] if level not in self.levels else []
        for name in names:
            if name not in self.fields:
                self.fields.append(name)


def log_events_page() -> str:
    found = written()
    rows = [
        (code(event), ", ".join(found[event].levels), _listed(found[event].fields), sentence(TEXTS["occasions"][event]))
        for event in get_args(LogEvent)
    ]
    return page("Log events", "log-events", table(("event", "level", "fields", "when"), rows))


def written() -> dict[str, Written]:
    """The calls of the log in the worker's modules, by event."""
    found: dict[str, Written] = {event: Written() for event in get_args(LogEvent)}
    for path in sorted(_WORKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_], keywords=given
                ) if level in _LEVELS and event in found:
                    names = (keyword.arg or "…" for keyword in given if keyword.arg != "exc_info")
                    found[event].add(_LEVELS[level], names)
    return found


def _listed(names: list[str]) -> str:
    ordered = [name for name in names if name != "…"]
    return codes(ordered) + (", …" if "…" in names and ordered else "…" if "…" in names else "")
