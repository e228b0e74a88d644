"""The progress of a load, and the log's lines after it: where the model is, and how much memory it takes."""

import io
import sys
from typing import Any

import msgspec
import pytest
import structlog

from tests.observe.log_lines import Terminal, logging_is_put_back, to  # noqa: F401 - the first is a fixture of every test here
from tests.server.front.rehearsal import FACTS
from worker.config.settings import Settings
from worker.server.front.progress import LoadProgress, report_loaded
from worker.wire.load import Amx, ModelFacts, Offload, OffPlan


def test_the_bar_ends_with_the_first_100_whatever_is_heard_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of `--deterministic` sends a sign of life after each step: the weights are loaded by then."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = LoadProgress("pretty")
    for percent in (0, 50, 50, 100):
        progress.show(percent)
    drawn = terminal.getvalue()
    assert "loading the model" in drawn
    for _ in range(3):
        progress.show(100)
    progress.close()
    assert terminal.getvalue() == drawn


def test_without_a_terminal_each_quarter_is_one_line() -> None:
    stream = io.StringIO()
    to(stream)
    progress = LoadProgress("json")
    for percent in (0, 10, 10, 26, 49, 50, 99, 100, 100):
        progress.show(percent)
    percents = [msgspec.json.decode(line)["percent"] for line in stream.getvalue().splitlines()]
    assert percents == [0, 26, 50, 99, 100]


def lines(settings: Settings | None = None, **facts: Any) -> list[dict[str, object]]:
    stream = io.StringIO()
    to(stream)
    structlog.contextvars.clear_contextvars()
    report_loaded(msgspec.structs.replace(FACTS, **facts), settings or Settings(model="m.gguf"))
    return [msgspec.json.decode(line, type=dict[str, object]) for line in stream.getvalue().splitlines()]


def test_it_says_how_many_layers_are_on_which_device() -> None:
    [line] = lines(offload=Offload(gpu_layers=12, layers_total=31))
    told: dict[str, object] = {"gpu_layers": 12, "layers_total": 31, "memory_bytes": FACTS.memory_bytes}
    told |= {"event": "model_load_complete", "model": FACTS.name, "model_ref": "m.gguf", "device": FACTS.device_name}
    assert {name: line[name] for name in told} == told


@pytest.mark.parametrize(("template", "named"), [("x", "hermes (generic)"), (None, None)])
def test_it_names_the_format_of_calls_if_there_is_a_template(template: str | None, named: str | None) -> None:
    [line] = lines(model=ModelFacts(chat_template=template))
    assert line["chat_format"] == named


@pytest.mark.parametrize(("max_tokens_in", "most"), [(0, 1023), (1022, 1022), (1023, 1023), (1024, 1023), (9, 9)])
def test_it_says_how_long_a_prompt_may_be(max_tokens_in: int, most: int) -> None:
    """An answer needs a token of the context, too."""
    [line] = lines(Settings(model="m.gguf", max_tokens_in=max_tokens_in))
    assert line["max_prompt_tokens"] == most


def test_each_device_that_is_off_its_plan_has_a_warning_with_all_figures() -> None:
    off = (OffPlan("CUDA0 (a card)", 100, 150, 160), OffPlan("CUDA1 (a card)", 100, 80))
    _, *warnings = lines(offload=Offload(off_plan=off))
    assert [(line["event"], line["level"]) for line in warnings] == [("memory_off_plan", "warning")] * 2
    names = ("device", "planned_bytes", "allocated_bytes", "taken_bytes")
    assert [tuple(line[name] for name in names) for line in warnings] == [msgspec.structs.astuple(one) for one in off]


def test_a_prefix_cache_that_is_off_is_a_warning_with_the_reason_unless_a_setting_turned_it_off() -> None:
    _, line = lines(prefix_cache_off="mamba has recurrent state")
    told = (line["event"], line["level"], line["reason"])
    assert told == ("prefix_cache_off", "warning", "mamba has recurrent state")
    assert len(lines(Settings(model="m.gguf", prefix_cache_mb="0"), prefix_cache_off="--prefix-cache-mb is 0")) == 1


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("build", [True, False])
@pytest.mark.parametrize("processor", [True, False])
def test_a_build_without_the_processors_amx_is_a_warning_with_the_remedy_where_the_processor_computes(
    backend: str, *, build: bool, processor: bool
) -> None:
    amx = Amx(processor=processor, build=build, tile_bytes=4096 if build and processor else 0)
    told, *warnings = lines(backend=backend, amx=amx)
    assert told["tile_bytes"] == amx.tile_bytes
    is_left_out = processor and not build and backend == "cpu"
    assert [(line["event"], line["level"]) for line in warnings] == [("amx_left_out", "warning")] * is_left_out
    assert all("install clang-19 and libomp-19-dev" in str(line["remedy"]) for line in warnings)
