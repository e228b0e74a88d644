"""The report: what it keeps, when it goes on, how it reads."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cuda_check.circumstances import new_report, parse_gpu
from tools.cuda_check.markdown import page
from tools.cuda_check.report import DamagedReportError, Figure, Gpu, Machine, Report, Step
from tools.cuda_check.runs import ORDER


def report(*steps: Step, device: str = "cuda") -> Report:
    return Report(
        device=device,
        created="2026-01-01T00:00:00Z",
        commit="0123456789abcdef",
        is_small=False,
        machine=Machine(cpu="A CPU", n_cores=8, n_usable=4, memory_bytes=2**34, system="Linux x86_64"),
        gpu=Gpu(name="A GPU", driver="580.1", compute_capability="9.0", memory_bytes=80 * 10**9, toolkit="13.0"),
        versions={"worker": "0.1.0"},
        steps=list(steps),
    )


def step(name: str, *figures: Figure, is_passed: bool = True) -> Step:
    return Step(name=name, outcome="passed" if is_passed else "failed", seconds=1.5, summary="a | b", figures=figures)


@given(st.lists(st.sampled_from(ORDER), max_size=20))
def test_a_step_is_kept_once_in_its_place_with_its_last_end(names: list[str]) -> None:
    kept = report()
    for number, name in enumerate(names):
        kept.keep(msgspec.structs.replace(step(name), seconds=float(number)), ORDER)
    assert [one.name for one in kept.steps] == [name for name in ORDER if name in names]
    for one in kept.steps:
        assert one.seconds == max(number for number, name in enumerate(names) if name == one.name)


def test_what_is_written_is_read_back_and_its_schema_names_the_version(tmp_path: Path) -> None:
    figure = Figure(what="1 stream", value=1.5, unit="tokens/s", device="cuda", model="x.gguf")
    written = report(step("device"), step("small", figure))
    written.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert "llorch-worker/device-check/1" in str(msgspec.json.schema(Report))


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "llorch-worker/device-check/2"}'])
def test_what_is_no_report_of_this_version_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DamagedReportError, match=r"report\.json is not a report of llorch-worker/device-check/1"):
        Report.read(tmp_path / "report.json")


def test_a_round_goes_on_only_with_the_same_code_machine_and_build() -> None:
    one = report(step("device"))
    assert one.is_same_round(msgspec.structs.replace(report(), created="2026-01-02T00:00:00Z"))
    changes = (
        {"device": "cpu"},
        {"commit": "f"},
        {"wheel": "a"},
        {"is_small": True},
        {"gpu": Gpu()},
        {"versions": {"worker": "0.2"}},
    )
    assert not any(one.is_same_round(msgspec.structs.replace(one, **change)) for change in changes)


def test_this_machine_can_be_described() -> None:
    made = new_report("cpu", is_small=True)
    assert made.machine.n_usable >= 1
    assert made.machine.memory_bytes > 0
    assert made.steps == []


@pytest.mark.parametrize(
    ("smi", "found"),
    [
        (
            "NVIDIA H200, 580.159.03, 9.0, 143771\nNVIDIA H200, 580.159.03, 9.0, 143771\n",
            Gpu(name="NVIDIA H200", driver="580.159.03", compute_capability="9.0", memory_bytes=143771 * 2**20),
        ),
        (
            "NVIDIA GB10, 580.95.05, 12.1, [N/A]\n",
            Gpu(name="NVIDIA GB10", driver="580.95.05", compute_capability="12.1"),
        ),
        ("No devices were found\n", Gpu()),
        ("", Gpu()),
    ],
)
def test_a_gpu_is_read_from_nvidia_smi(smi: str, found: Gpu) -> None:
    assert parse_gpu(smi, "") == found
    nvcc = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"
    assert parse_gpu(smi, nvcc) == msgspec.structs.replace(found, toolkit="13.0")


@given(st.floats(allow_nan=True), st.none() | st.floats(-10, 10), st.none() | st.floats(-10, 10))
def test_a_bound_holds_for_what_lies_within_it(value: float, low: float | None, high: float | None) -> None:
    figure = Figure(what="x", value=value, at_least=low, at_most=high)
    if low is None and high is None:
        assert figure.holds
    elif not math.isfinite(value):
        assert not figure.holds
    else:
        assert figure.holds == ((low is None or value >= low) and (high is None or value <= high))


def test_a_page_has_every_step() -> None:
    bound = Figure(what="KL", value=0.001, unit="nats", at_most=0.02, device="cuda", model="x.gguf")
    alone = Figure(what="prompt", value=5.0, unit="tokens/s", device="cuda", model="x.gguf")
    steps = (step("device"), step("parity", bound), step("steps", alone), step("make", is_passed=False))
    text = page(report(*steps))
    assert "| x.gguf | prompt | 5 tokens/s |  |  |" in text
    assert "## parity\n\n| model |  | found | bound |  |" in text
    assert "| x.gguf | KL | 0.001 nats | ≤ 0.02 | holds |" in text
    assert "| make | failed | 2 s | a \\| b |" in text
    assert "A GPU, 80000 MB, driver 580.1" in text


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5), st.lists(st.text("ab", min_size=1), max_size=4))
def test_a_page_has_every_figure_and_every_failure_of_a_step_that_failed(
    values: list[float], failures: list[str]
) -> None:
    figures = [
        Figure(what=f"figure {number}", value=value, device="cuda", model="x.gguf", at_most=5.0)
        for number, value in enumerate(values)
    ]
    failed = msgspec.structs.replace(step("served", *figures, is_passed=False), failures=tuple(failures))
    text = page(report(failed))
    for number, value in enumerate(values):
        (row,) = [line for line in text.splitlines() if f"| figure {number} |" in line]
        assert row.endswith(f"| ≤ 5 | {'holds' if value <= 5 else 'MISSED'} |")
    assert [
        line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ") and line[2] in "ab"
    ] == failures
