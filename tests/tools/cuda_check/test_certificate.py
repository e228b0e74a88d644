"""A device's certificate: each judged number, each level that failed, and a worker that it does not cover."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.bundle import proof_of, write
from parity.report import LEVELS, Check
from tests.gguf_files import tiny_model
from tests.llama.tiny import write_tiny
from tests.parity.reports import BROKEN, FAILED, HOLDS, NOT_A_NUMBER, level, levels, report
from tools.cuda_check import certificate
from tools.cuda_check.report import Figure
from worker.host import sha256_of

CHECKS = st.lists(st.sampled_from([HOLDS, BROKEN, NOT_A_NUMBER, replace(HOLDS, relation="at least")]), min_size=1)


@given(st.dictionaries(st.sampled_from(LEVELS), CHECKS))
def test_every_judged_number_is_a_figure_with_its_verdict_and_comes_through_json(
    checks: dict[str, list[Check]],
) -> None:
    made = report(levels(**{name: level(name, *found) for name, found in checks.items()}))
    figures = certificate.figures_of(made, "cuda")
    judged = [(one.name, check) for one in made.levels for check in one.checks if check is not NOT_A_NUMBER]
    assert [figure.what for figure in figures] == [f"{name}: {check.name}" for name, check in judged]
    assert [figure.holds for figure in figures] == [check.holds for _, check in judged]
    assert msgspec.json.decode(msgspec.json.encode(figures), type=list[Figure]) == figures


def test_each_level_that_failed_is_named_and_a_bundle_that_was_changed(tmp_path: Path) -> None:
    made = report(levels(checkpoints=FAILED))
    bundle = write(tmp_path, proof_of(made))
    (failure,) = certificate.failures_of(made, bundle)
    assert failure == f"level checkpoints: {FAILED.summary}"
    (bundle / "report.md").write_text("changed")
    assert any(one.startswith("the proof bundle: report.md") for one in certificate.failures_of(made, bundle))


@pytest.mark.process
@pytest.mark.parametrize("is_of_it", [True, False])
def test_a_worker_that_is_not_covered_is_reported_with_each_difference(tmp_path: Path, *, is_of_it: bool) -> None:
    """The numerics of the report are no worker's."""
    model = write_tiny(tmp_path / "tiny.gguf")
    other = tiny_model().write(tmp_path / "other.gguf")
    bundle = write(tmp_path, proof_of(report(sha256=sha256_of(model if is_of_it else other))))
    found = certificate.uncovered(model, "cpu", bundle)
    assert any(one.startswith("model: sha256") for one in found) is not is_of_it
    assert any(one.startswith("llama_cpp_sha256: ") for one in found)
