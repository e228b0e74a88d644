"""The report: what it keeps, when it goes on, how it reads; and the figures of a certificate and of served rounds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.bundle import proof_of, write
from parity.provenance import this_machine
from tests.gguf_files import tiny_model
from tests.llama.tiny import write_tiny
from tests.parity.reports import BROKEN, FAILED, HOLDS, NOT_A_NUMBER, level, levels, report
from tools.bench.report import Circumstances, Line, Spread
from tools.bench.report import Report as BenchReport
from tools.bench.scenarios import ON_GPU
from tools.bench.servers import LLAMA_SERVER, OURS
from tools.cuda_check import served
from tools.cuda_check.report import Figure, Gpu, Report, Step, page, parse_gpu
from tools.cuda_check.served import SCENARIOS, TARGETS, Target
from tools.cuda_check.steps import certified, uncertified, uncovered
from worker.host import sha256_of


def step(name: str, *figures: Figure, failures: tuple[str, ...] = ()) -> Step:
    outcome: Literal["failed", "passed"] = "failed" if failures else "passed"
    return Step(name=name, outcome=outcome, seconds=1.5, summary="a | b", figures=figures, failures=failures)


def test_what_is_written_is_read_back_and_a_step_is_kept_once_in_its_place(tmp_path: Path) -> None:
    written = Report.new("cpu", is_small=True)
    for name in ("parity", "device", "parity"):
        written.keep(step(name, Figure(what="1 stream", value=1.5, unit="tokens/s")), ("device", "parity"))
    assert [one.name for one in written.steps] == ["device", "parity"]
    written.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert written.is_same_round(Report.new("cpu", is_small=True))
    for change in ({"device": "cuda"}, {"commit": "f"}, {"wheel": "a"}, {"is_small": False}, {"gpu": Gpu(name="a")}):
        assert not written.is_same_round(msgspec.structs.replace(written, **change))


@pytest.mark.parametrize(
    ("smi", "found"),
    [
        (
            "NVIDIA H200, 580.159.03, 9.0, 143771\nNVIDIA H200, 580.159.03, 9.0, 143771\n",
            Gpu(name="NVIDIA H200", driver="580.159.03", compute_capability="9.0", memory_bytes=143771 * 2**20),
        ),
        ("NVIDIA GB10, 580.95, 12.1, [N/A]\n", Gpu(name="NVIDIA GB10", driver="580.95", compute_capability="12.1")),
        ("No devices were found\n", Gpu()),
    ],
)
def test_a_gpu_is_read_from_nvidia_smi(smi: str, found: Gpu) -> None:
    assert parse_gpu(smi, "") == found
    assert parse_gpu(smi, "tools, release 13.0, V13.0.88\n") == msgspec.structs.replace(found, toolkit="13.0")


@given(st.floats(allow_nan=True), st.none() | st.floats(-10, 10), st.none() | st.floats(-10, 10))
def test_a_bound_holds_for_what_lies_within_it(value: float, low: float | None, high: float | None) -> None:
    figure = Figure(what="x", value=value, at_least=low, at_most=high)
    is_within = (low is None or value >= low) and (high is None or value <= high) and abs(value) < float("inf")
    assert figure.holds == (is_within or low is high is None)


def test_a_page_has_every_step_figure_and_failure() -> None:
    made = Report.new("cuda", is_small=False)
    made.gpu = Gpu(name="A GPU", driver="580.1", memory_bytes=80 * 10**9)
    bound = Figure(what="KL", value=0.001, unit="nats", at_most=0.02, model="x.gguf")
    missed = msgspec.structs.replace(bound, at_most=0.0001)
    alone = Figure(what="prompt", value=5.0, unit="tokens/s", model="x.gguf")
    made.steps = [step("device"), step("parity", bound, alone), step("control", missed, failures=("one", "two"))]
    text = page(made)
    assert "- GPU: A GPU, 80000 MB, driver 580.1\n" in text
    assert "| control | failed | 2 s | a \\| b |" in text
    assert "`control` failed:\n\n- one\n- two\n" in text
    assert "## parity\n\n| model |  | found | bound |  |" in text
    assert "| x.gguf | KL | 0.001 nats | ≤ 0.02 | holds |\n| x.gguf | prompt | 5 tokens/s |  |  |" in text
    assert "| x.gguf | KL | 0.001 nats | ≤ 0.0001 | MISSED |" in text


def test_every_judged_number_of_a_certificate_is_a_figure_and_each_failure_is_named(tmp_path: Path) -> None:
    made = report(levels(logits=level("logits", HOLDS, BROKEN, NOT_A_NUMBER), checkpoints=FAILED))
    figures = certified(made)
    assert [figure.holds for figure in figures if figure.what.startswith("logits: ")] == [True, False]
    assert msgspec.json.decode(msgspec.json.encode(figures), type=list[Figure]) == figures
    bundle = write(tmp_path, proof_of(made))
    assert f"level checkpoints: {FAILED.summary}" in uncertified(made, bundle)
    (bundle / "report.md").write_text("changed")
    assert any(one.startswith("the proof bundle: report.md") for one in uncertified(made, bundle))


@pytest.mark.process
@pytest.mark.parametrize("is_of_it", [True, False])
def test_a_worker_that_is_not_covered_is_reported_with_each_difference(tmp_path: Path, *, is_of_it: bool) -> None:
    """The numerics of the report are no worker's."""
    model = write_tiny(tmp_path / "tiny.gguf")
    other = tiny_model().write(tmp_path / "other.gguf")
    bundle = write(tmp_path, proof_of(report(sha256=sha256_of(model if is_of_it else other))))
    found = uncovered(model, "cpu", bundle)
    assert any(one.startswith("model: sha256") for one in found) is not is_of_it
    assert any(one.startswith("llama_cpp_sha256: ") for one in found)


CIRCUMSTANCES = Circumstances(
    created="2026-01-02T03:04:05Z",
    model="tiny.gguf",
    machine=this_machine(2),
    versions={},
    commands={},
    n_rounds=3,
    seed=7,
)


def bench_line(**changes: object) -> Line:
    fields: dict[str, object] = {
        "scenario": "1-stream",
        "title": "1 stream, 64 / 96",
        "text": "random words",
        "has_drafts": True,
        "measure": "decode",
        "is_own": True,
        "unit": "tokens/s",
        "peer": "llama-server",
        "is_beside": False,
        "ours": (150.0, 152.0, 151.0),
        "theirs": (150.0, 150.0, 149.0),
        "ratio": Spread(1.0, 1.01, 1.02),
        "bound": "≥ 0.98",
        "verdict": "holds",
        "ours_per_cpu_s": (60.0, 61.0, 62.0),
        "theirs_per_cpu_s": (50.0,),
        **changes,
    }
    return Line(**fields)  # type: ignore[arg-type] # the fields above are a line's


def line_of(target: Target, value: float) -> Line:
    """A line of the scenario in which our number, or our number by theirs, is the value."""
    ratio = Spread.of([value]) if target.peer else None
    theirs = (1.0,) if target.peer else ()
    changes = {"title": target.scenario, "ours": (value,), "theirs": theirs, "ratio": ratio}
    return bench_line(scenario=target.scenario, peer=target.peer, **changes)


def report_of(lines: Sequence[Line], *failures: str) -> BenchReport:
    return BenchReport(circumstances=CIRCUMSTANCES, lines=lines, failures=failures, resident=[])


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_missed_by_name_beyond_its_number_or_without_one(target: Target) -> None:
    for factor, is_kept in ((0.99, target.at_least is None), (1.01, target.at_most is None)):
        made = report_of([line_of(target, factor * (target.at_least or target.at_most or 0))])
        (figure,) = [figure for figure in served.figures_of(made) if figure.bound]
        assert figure.holds is is_kept
        assert [one.split(":")[0] for one in served.failures_of(made)] == ([] if is_kept else [target.scenario])
        assert served.failures_of(made, ()) == []
    unknown = report_of([replace(line_of(target, 1.0), ours=(), theirs=(), ratio=None)], "8 of 8 requests failed")
    assert served.figures_of(unknown) == []
    first, rest = served.failures_of(unknown)
    assert first.endswith(": not measured")
    assert rest == "8 of 8 requests failed"


def test_each_sides_number_is_reported_once_as_its_median_and_every_scenario_has_a_target() -> None:
    lines = [bench_line(peer=peer) for peer in (LLAMA_SERVER, "other")]
    figures = served.figures_of(report_of(lines))
    told = {figure.what: figure.value for figure in figures if figure.unit == "tokens/s"}
    title = "1 stream, 64 / 96: decode, "
    assert told == {title + OURS: 151.0, title + LLAMA_SERVER: 150.0, title + "other": 150.0}
    assert {target.scenario for target in TARGETS} == set(SCENARIOS) <= {scenario.name for scenario in ON_GPU}
