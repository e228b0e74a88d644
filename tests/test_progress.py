"""What the log says of a load that succeeded: where the model is, and where its memory is not as planned."""

import io

import msgspec
import structlog

from tests.log_lines import logging_is_put_back, to  # noqa: F401 - the first is a fixture of every test here
from tests.rehearsal import FACTS
from worker.engine.offload import Offload, OffPlan
from worker.progress import report_loaded
from worker.settings import Settings


def lines(
    offload: Offload, prefix_cache_off: str | None = None, settings: Settings | None = None
) -> list[dict[str, object]]:
    stream = io.StringIO()
    to(stream)
    structlog.contextvars.clear_contextvars()
    facts = msgspec.structs.replace(FACTS, offload=offload, prefix_cache_off=prefix_cache_off)
    report_loaded(facts, settings or Settings(model="m.gguf"))
    return [msgspec.json.decode(line, type=dict[str, object]) for line in stream.getvalue().splitlines()]


def test_it_says_how_many_layers_are_on_which_device() -> None:
    [line] = lines(Offload(gpu_layers=12, layers_total=31))
    told = {name: line[name] for name in ("event", "model", "model_ref", "device", "gpu_layers", "layers_total")}
    assert told == {
        "event": "model_load_complete",
        "model": FACTS.name,
        "model_ref": "m.gguf",
        "device": FACTS.device_name,
        "gpu_layers": 12,
        "layers_total": 31,
    }
    assert line["memory_bytes"] == FACTS.memory_bytes


def test_each_device_that_is_off_its_plan_has_a_warning_with_all_figures() -> None:
    off = (OffPlan("CUDA0 (a card)", 100, 150, 160), OffPlan("CUDA1 (a card)", 100, 80))
    _, *warnings = lines(Offload(off_plan=off))
    assert [(line["event"], line["level"]) for line in warnings] == [("memory_off_plan", "warning")] * 2
    names = ("device", "planned_bytes", "allocated_bytes", "taken_bytes")
    assert [tuple(line[name] for name in names) for line in warnings] == [msgspec.structs.astuple(one) for one in off]


def test_a_prefix_cache_that_is_off_is_a_warning_with_the_reason_unless_nobody_wanted_one() -> None:
    _, line = lines(Offload(), "mamba has recurrent state")
    assert (line["event"], line["level"], line["reason"]) == (
        "prefix_cache_off",
        "warning",
        "mamba has recurrent state",
    )
    assert len(lines(Offload(), "--prefix-cache-mb is 0", Settings(model="m.gguf", prefix_cache_mb="0"))) == 1
