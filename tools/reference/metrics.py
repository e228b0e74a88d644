"""The page of metrics: every series with its type, its labels and its meaning, as `/metrics` describes them."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tools.markdown import table
from tools.reference.text import PAGE_TEXTS, code, codes, page, sentence
from worker.observe.metrics import Metrics

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
