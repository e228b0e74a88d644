"""The peaks of a machine are tried here for a moment, with little memory."""

from pathlib import Path

import pytest

import tools.bench.peaks as module
from tools.bench.peaks import peaks

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRY_S", 0.02)


def test_this_machine_reads_and_multiplies() -> None:
    found = peaks(2, 4_000_000)
    assert found is not None
    assert found.n_bytes == 4_000_000
    assert 1e8 < found.read_bytes_per_s < 1e13
    assert 1e8 < found.multiply_adds_per_s < 1e15
    assert found.instructions in {"avx2", "avx512-vnni", "amx", "neon-dotprod", "neon-i8mm"}


def test_two_threads_do_no_less_than_half_of_what_one_does() -> None:
    one, two = peaks(1, 1_000_000), peaks(2, 1_000_000)
    assert one is not None
    assert two is not None
    assert two.multiply_adds_per_s > 0.5 * one.multiply_adds_per_s


def test_without_a_compiler_there_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPILERS", ("no-such-compiler",))
    assert peaks(1, 1_000_000) is None


def test_a_program_that_does_not_compile_is_no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int main(\n")
    monkeypatch.setattr(module, "_PROGRAM", broken)
    assert peaks(1, 1_000_000) is None
