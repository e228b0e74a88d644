"""The pages for operators: log events as the worker's modules write them, and metrics as `/metrics` describes them."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tools import CHECKOUT
from tools.markdown import table
from tools.reference.text import PAGE_TEXTS, TEXTS, code, codes, page, sentence
from worker.observe.log_lines import LogEvent
from worker.observe.metrics import Metrics

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
    for path in sorted((CHECKOUT / "worker").rglob("*.py")):
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


_COLUMNS: Final = ("series", "type", "labels", "meaning")
_PROCESS: Final = ("process_", "worker_engine_process_")
_COMMON: Final = {"worker_id", "model_name", "engine", "le"}


def metrics_page() -> str:
    own = table(_COLUMNS, map(_row, own_series()))
    vllm = table(_COLUMNS, map(_row, vllm_series()))
    names = f"## The worker's names\n\n{own}\n\n{PAGE_TEXTS['processes']}"
    return page("Metrics", "metrics", names, f"{PAGE_TEXTS['vllm']}\n\n{vllm}")


def own_series() -> Iterator[Metric]:
    """The worker's series, without those of its processes; one HTTP request stands for all."""
    metrics = Metrics("w")
    metrics.routes([("/health", "GET", 200)])
    for family in _families(metrics):
        if not family.name.startswith(("vllm:", *_PROCESS)):
            yield family


def vllm_series() -> Iterator[Metric]:
    """The series under vLLM's names, with samples."""
    metrics = Metrics("w")
    metrics.named_as_vllm_does("m", 16)
    yield from (family for family in _families(metrics) if family.name.startswith("vllm:"))


def _families(metrics: Metrics) -> Iterable[Metric]:
    body, _ = metrics.render(None)
    return text_string_to_metric_families(body.decode())


def _row(family: Metric) -> tuple[str, ...]:
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
    labels = {label for sample in family.samples for label in sample.labels} - _COMMON
    return code(name), family.type, codes(sorted(labels)), sentence(family.documentation)
