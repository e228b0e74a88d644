"""A round's steps in their processes: what comes back, and what does when nothing does."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.worker_process import eventually
from tools import CHECKOUT
from tools.cuda_check.__main__ import BUILD, REPORT, run_apart
from tools.cuda_check.report import Figure, Found, Report
from tools.cuda_check.steps import STEPS, Asked, StepFailedError, of_suite
from tools.made_model import SHAPES, made_model

PATIENCE_S = 120.0
MOST_S = 20 * 60
"""A round of one machine with 16 cores, the build included."""
SCRIPT = CHECKOUT / "scripts" / "cuda_check.sh"


def asked(folder: Path, device: str = "cpu", model: str | None = None) -> Asked:
    return Asked(device=device, work=str(folder), out=str(folder), model=model, shape="tiny", is_small=True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.cuda_check", *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.process
def test_a_step_reports_what_it_found_and_what_it_lacks_is_one_line(tmp_path: Path) -> None:
    found = run_apart("device", asked(tmp_path), tmp_path, limit_s=PATIENCE_S)
    assert isinstance(found, Found)
    assert found.summary.startswith("CPU: ")
    tiny = str(made_model(tmp_path, SHAPES["tiny"]))
    for name, lacking, words in (
        ("device", asked(tmp_path, "cuda:99"), "no such device: --device cuda:99"),
        ("served", asked(tmp_path, model=tiny), "there are no peers: name the folder"),
        ("certificate", asked(tmp_path, model=tiny), "there are no reference logits of"),
    ):
        ended = run_apart(name, lacking, tmp_path, limit_s=PATIENCE_S)
        assert isinstance(ended, str)
        assert words in ended


@pytest.mark.model
@pytest.mark.process
def test_a_step_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path, default_model: Path) -> None:
    """The test stops the child, so that the step cannot be done in time on any machine."""
    proofs = tmp_path / "proof_bundle"
    of_model = asked(tmp_path, model=str(default_model))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(run_apart, "certificate", of_model, tmp_path, limit_s=20.0)
        eventually(lambda: ending.done() or suspended(processes_with(proofs)))
        assert ending.result(PATIENCE_S) == "not done after 20 s"
    assert processes_with(proofs) == []


def processes_with(path: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if str(path) in (process.info["cmdline"] or [])]


def suspended(processes: list[psutil.Process]) -> bool:
    for process in processes:
        process.suspend()
    return bool(processes)


@pytest.mark.process
def test_the_probe_times_every_part_with_both_models_and_keeps_each_figure_at_once(tmp_path: Path) -> None:
    model = made_model(tmp_path, SHAPES["tiny"])
    found = run_apart("probe", asked(tmp_path, model=str(model)), tmp_path, limit_s=PATIENCE_S)
    assert isinstance(found, Found), found
    kept = [msgspec.json.decode(line, type=Figure) for line in (tmp_path / "probe.jsonl").read_bytes().splitlines()]
    assert tuple(kept) == found.figures
    names = [figure.what for figure in kept]
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    for part in ("prompt of 32", "step of 9: draw", "one step of 2 among", "step of 1 beside 256", "copy in of 40"):
        assert any(name.startswith(part) for name in names), part
    values = {figure.what: figure.value for figure in kept}
    assert all(values[f"step of {width}: wait"] == pytest.approx(0, abs=1e-3) for width in (1, 2, 9)), "it is a CPU"


@pytest.mark.process
def test_the_same_device_twice_computes_the_same_and_the_control_compares_two_types(tmp_path: Path) -> None:
    model = made_model(tmp_path, SHAPES["tiny"])
    found = run_apart("parity", asked(tmp_path, model=str(model)), tmp_path, limit_s=PATIENCE_S)
    assert isinstance(found, Found), found
    assert [figure.value for figure in found.figures] == [pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-9), 0, 1]
    found = run_apart("control", asked(tmp_path), tmp_path, limit_s=PATIENCE_S)
    assert isinstance(found, Found), found
    bounded = [figure.model for figure in found.figures if figure.at_most is not None]
    assert bounded == ["random-control-tiny.Q8_0.gguf", "random-control-tiny.Q4_1.gguf"]


@pytest.mark.process
def test_a_round_goes_on_and_keeps_what_failed_and_without_the_device_no_other_step_runs(tmp_path: Path) -> None:
    flags = ("run", "--small", "--out", str(tmp_path), "--work", str(tmp_path), "--device")
    (tmp_path / REPORT).write_text("{}")
    assert "is not a report" in run("render", str(tmp_path / REPORT)).stderr
    assert run(*flags, "cpu", "probe").returncode == 1
    first = run(*flags, "cpu", "device", "make")
    assert first.returncode == 1, first.stderr
    assert "failed: probe" in first.stderr
    report = Report.read(tmp_path / REPORT)
    assert [(step.name, step.outcome) for step in report.steps] == [
        ("device", "passed"),
        ("make", "passed"),
        ("probe", "failed"),
    ]
    assert "run the step `make` first" in report.steps[2].summary
    assert "| probe | failed |" in run("render", str(tmp_path / REPORT)).stdout
    assert [path.read_text() for path in tmp_path.glob(f"before-*/{REPORT}")] == ["{}"]
    assert run(*flags, "cuda:99").returncode == 1
    assert [step.name for step in Report.read(tmp_path / REPORT).steps] == ["device"]


def test_the_expected_times_of_the_script_are_of_all_steps_and_fit_in_twenty_minutes() -> None:
    """Each step's limit leaves room beyond its expected time."""
    expected = dict(re.findall(r"^#  +([a-z-]+) +(\d+) s\b", SCRIPT.read_text(), re.MULTILINE))
    assert list(expected) == [BUILD, *STEPS]
    assert sum(map(int, expected.values())) <= MOST_S
    assert all(int(expected[name]) < STEPS[name].limit_s for name in STEPS)


def junit(**cases: str) -> str:
    inner = "".join(f'<testcase classname="t" name="{name}[cuda]">{what}</testcase>' for name, what in cases.items())
    return f"<testsuites><testsuite>{inner}</testsuite></testsuites>"


def test_a_suite_fails_by_its_tests_and_where_none_ran_on_the_device() -> None:
    found = of_suite(junit(a="", b="<failure/>", c="<error/>", d="<skipped/>"), 1, "cuda")
    assert found.failures == ("t::b[cuda]", "t::c[cuda]")
    assert found.summary == "2 of 4 failed; 1 passed, 1 of them on cuda; 1 skipped"
    assert of_suite(junit(d="<skipped/>"), 0, "cpu").summary == "0 passed, 0 of them on cpu; 1 skipped"
    for text, code, words in (
        (junit(d="<skipped/>"), 0, "none of 1 tests ran on cuda"),
        (junit(a=""), 2, "ended with 2"),
        (None, 2, "the tests could not run"),
    ):
        with pytest.raises(StepFailedError, match=words):
            of_suite(text, code, "cuda")


def test_the_script_refuses_a_machine_without_a_gpu_in_one_line(tmp_path: Path) -> None:
    """The nvidia-smi finds no GPU, as on a machine whose driver is not loaded."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    smi.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [SCRIPT, "device"], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "cuda_check: no NVIDIA GPU here: nvidia-smi lists none (--device cpu tries the round without)\n"
    )
