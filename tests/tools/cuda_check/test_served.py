"""The served rounds' figures: every side's numbers, ours by theirs, and the targets that are missed by name."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.bench import made_report
from tools.bench.report import Line, Report, Spread
from tools.bench.scenarios import ON_GPU
from tools.bench.servers import LLAMA_SERVER, NO_CACHE, OURS
from tools.bench.sides import LLAMA_BATCHED_BENCH, LLAMA_BENCH
from tools.cuda_check import served
from tools.cuda_check.report import Figure
from tools.cuda_check.served import SCENARIOS, TARGETS, Peers, Target

RATES = st.floats(0.01, 1000)


def line_of(target: Target, value: float) -> Line:
    """A line of the scenario in which our number, or our number by theirs, is the value."""
    is_alone = target.peer is None
    return made_report.line(
        scenario=target.scenario,
        title=f"title of {target.scenario}",
        peer=target.peer,
        ours=(value, value),
        theirs=() if is_alone else (1.0, 1.0),
        ratio=None if is_alone else Spread.of([value, value]),
    )


def report_of(lines: Sequence[Line], *failures: str) -> Report:
    return replace(made_report.report(), lines=lines, failures=failures)


def test_every_scenario_has_a_target_and_runs_on_a_gpu_beside_the_peers_that_its_targets_name() -> None:
    by_name = {scenario.name: scenario for scenario in ON_GPU}
    assert {target.scenario for target in TARGETS} == set(SCENARIOS) <= set(by_name)
    for target in TARGETS:
        scenario = by_name[target.scenario]
        assert target.peer in {
            None,
            *([LLAMA_SERVER, NO_CACHE] if "judged" in scenario.peers else []),
            *([LLAMA_BENCH] if scenario.has_llama_bench else []),
            *([LLAMA_BATCHED_BENCH] if scenario.has_batched_bench else []),
        }


@given(st.lists(RATES, min_size=len(TARGETS), max_size=len(TARGETS)))
def test_a_target_is_missed_by_name_exactly_where_its_number_is_beyond_it(values: list[float]) -> None:
    lines = [line_of(target, value) for target, value in zip(TARGETS, values, strict=True)]
    report = report_of(lines)
    judged = [figure for figure in served.figures_of(report, "cuda") if figure.bound]
    assert [figure.value for figure in judged] == values
    failures = served.failures_of(report)
    assert len(failures) == sum(not figure.holds for figure in judged)
    for target, value, line in zip(TARGETS, values, lines, strict=True):
        is_kept = value >= (target.at_least or 0) and (target.at_most is None or value <= target.at_most)
        named = [one for one in failures if one.startswith(f"{line.title}: decode")]
        mine = [one for one in named if target.peer is None or f"by {target.peer}'s:" in one]
        assert bool(mine) is not is_kept


@given(st.lists(RATES, min_size=1, max_size=3), st.lists(RATES, min_size=1, max_size=3))
def test_each_sides_number_is_reported_once_as_its_median(ours: list[float], theirs: list[float]) -> None:
    peers = (LLAMA_SERVER, NO_CACHE)
    lines = [made_report.line(peer=peer, ours=tuple(ours), theirs=tuple(theirs)) for peer in peers]
    figures = served.figures_of(report_of(lines), "cuda")
    told = {figure.what: figure.value for figure in figures if figure.unit == "tokens/s"}
    title = "1 stream, 64 / 96: decode, "
    assert told == {title + OURS: median(ours), **{title + peer: median(theirs) for peer in peers}}
    assert all((figure.device, figure.model) == ("cuda", made_report.CIRCUMSTANCES.model) for figure in figures)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_without_a_number_is_a_failure_and_not_a_figure(target: Target) -> None:
    line = replace(line_of(target, 1.0), ours=(), theirs=(), ratio=None)
    report = report_of([line], "8 of 8 requests failed")
    assert served.figures_of(report, "cuda") == []
    first, *rest = served.failures_of(report)
    assert first.endswith(": not measured")
    assert rest == ["8 of 8 requests failed"]


@given(st.lists(RATES, min_size=len(TARGETS), max_size=len(TARGETS)))
def test_a_trial_of_the_round_has_the_numbers_and_no_target(values: list[float]) -> None:
    report = report_of([line_of(target, value) for target, value in zip(TARGETS, values, strict=True)], "1 failed")
    figures = served.figures_of(report, "cpu", ())
    assert [unjudged(figure) for figure in served.figures_of(report, "cpu")] == figures
    assert served.failures_of(report, ()) == ["1 failed"]


def unjudged(figure: Figure) -> Figure:
    """The figure without its target."""
    return msgspec.structs.replace(figure, at_least=None, at_most=None)


def test_a_peer_that_was_not_asked_for_has_no_target_here() -> None:
    """On a CPU llama-server is not started a second time without its cache."""
    here = report_of([line_of(target, 1.0) for target in TARGETS if target.peer != NO_CACHE])
    assert not any(NO_CACHE in failure for failure in served.failures_of(here))


def test_a_folder_without_a_peer_is_refused_by_the_programs_name(tmp_path: Path) -> None:
    for missing in ("llama-server", "llama-bench", "llama-batched-bench"):
        with pytest.raises(FileNotFoundError, match=f"{missing} is not there"):
            Peers.within(tmp_path)
        (tmp_path / missing).touch()
    assert Peers.within(tmp_path).llama_bench == str(tmp_path / "llama-bench")
