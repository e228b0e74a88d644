"""The project's tests on a device: which outcome each has, and what a round makes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cuda_check import suites
from tools.cuda_check.steps import StepFailedError, of_suite

Outcome = Literal["", "failure", "error", "skipped"]
Case = tuple[str, Outcome]
"""A test's name, and its element in the file; none if it passed."""

CASES = st.lists(
    st.tuples(st.sampled_from(["x", "x[cuda]", "x[cpu]"]), st.sampled_from(["", "failure", "error", "skipped"]))
)


def junit(cases: Sequence[Case]) -> str:
    inner = "".join(
        f'<testcase classname="tests.t{number}" name="test_{name}">{f"<{what}/>" if what else ""}</testcase>'
        for number, (name, what) in enumerate(cases)
    )
    return f"<testsuites><testsuite>{inner}</testsuite></testsuites>"


def names(cases: Sequence[Case], *outcomes: Outcome) -> tuple[str, ...]:
    return tuple(f"tests.t{number}::test_{name}" for number, (name, what) in enumerate(cases) if what in outcomes)


@given(CASES)
def test_every_test_has_one_outcome_and_its_full_name(cases: list[Case]) -> None:
    results = suites.read(junit(cases))
    assert results.passed == names(cases, "")
    assert results.failed == names(cases, "failure", "error")
    assert results.n_skipped == len(names(cases, "skipped"))
    assert results.n_all == len(cases)


@given(CASES)
def test_a_step_names_every_test_that_failed_and_counts_those_of_the_device(cases: list[Case]) -> None:
    n_on_it = len([name for name in names(cases, "") if name.endswith("[cuda]")])
    failed = names(cases, "failure", "error")
    if not n_on_it and not failed:
        with pytest.raises(StepFailedError, match=f"none of {len(cases)} tests ran on cuda"):
            of_suite(junit(cases), 0, "cuda")
        return
    found = of_suite(junit(cases), 0, "cuda")
    assert found.failures == failed
    assert [figure.value for figure in found.figures] == [len(names(cases, "")), len(failed)]
    assert f"{n_on_it} of them on cuda" in found.summary


def test_a_suite_that_broke_off_fails_though_no_test_of_it_did() -> None:
    with pytest.raises(StepFailedError, match="ended with 2"):
        of_suite(junit([("x[cuda]", "")]), 2, "cuda")


def test_the_cpu_needs_no_tests_of_its_own() -> None:
    found = of_suite(junit([("x[cuda]", "skipped"), ("x", "")]), 0, "cpu")
    assert found.summary == "1 passed, 0 of them on cpu; 1 skipped"


def test_a_suite_that_could_not_run_is_a_failure() -> None:
    with pytest.raises(StepFailedError, match="the tests could not run"):
        of_suite(None, 2, "cuda")


MAKE = """#!/bin/sh
echo "$LLORCH_TEST_BACKEND $*" >"{asked}"
for option in $PYTEST_ADDOPTS; do
    case $option in --junitxml=*) echo '{junit}' >"${{option#--junitxml=}}" ;; esac
done
exit 2
"""


def test_the_whole_suite_is_make_tests_own_on_the_device_in_the_rounds_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[Case] = [("x", ""), ("y", "failure")]
    make, asked = tmp_path / "make", tmp_path / "asked"
    make.write_text(MAKE.format(asked=asked, junit=junit(cases)))
    make.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    text, code = suites.whole("cuda")
    assert text is not None
    assert code == 2
    assert suites.read(text).failed == names(cases, "failure")
    backend, *arguments = asked.read_text().split()
    assert (backend, arguments[-1]) == ("cuda", "test")
    assert "--old-file .venv/installed-dev" in " ".join(arguments)
