"""Numbers as text, and what is said of those out of range."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import cases
from worker.apis.core.bodies import Problems
from worker.apis.core.rules import f32_text, float_range, int_range
from worker.wire.jobs import narrow


@cases
def test_a_float_out_of_range(value: float, constraint: str, message: str) -> None:
    problems = Problems()
    float_range(problems, "x", value, -2, 2)
    (error,) = problems.found
    assert (error.constraint, error.message, error.value) == (constraint, message, f32_text(value))


def test_one_of_many_numbers_of_a_field_is_named_by_its_subject() -> None:
    problems = Problems()
    float_range(problems, "x", 3.0, -2, 2, subject="x entry 7")
    (error,) = problems.found
    assert (error.field, error.message) == ("x", "x entry 7 must be at most 2.0 (got 3)")


@cases
def test_a_whole_number_out_of_range(value: int, most: int | None, constraint: str, message: str) -> None:
    problems = Problems()
    int_range(problems, "x", value, 1, most)
    (error,) = problems.found
    assert (error.constraint, error.message, error.value) == (constraint, message, str(value))


@pytest.mark.parametrize("value", [None, 1, 9, 10**9])
def test_a_whole_number_in_range_or_off_is_no_error(value: int | None) -> None:
    problems = Problems()
    int_range(problems, "x", value, 1)
    assert problems.found == []


@cases
def test_f32_is_printed_as_rust_prints_it(value: float, text: str) -> None:
    assert f32_text(narrow(value)) == text


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

f32 = st.integers(0, 2**32 - 1).map(lambda bits: float(struct.unpack("<f", struct.pack("<I", bits))[0]))
powers_of_two = st.integers(-149, 127).map(lambda exponent: 2.0**exponent)
printable_f32 = (f32 | powers_of_two).filter(np.isfinite)


@pytest.mark.long
@given(printable_f32)
@settings(max_examples=1000)
def test_every_f32_is_printed_so_that_it_reads_back(value: float) -> None:
    text = f32_text(value)
    assert narrow(float(text)) == value
    assert "e" not in text
    assert not text.endswith(".0")


@pytest.mark.long
@given(printable_f32)
@settings(max_examples=1000)
def test_no_shorter_text_would_do(value: float) -> None:
    """numpy finds the shortest digits by another algorithm."""
    assert f32_text(value) == np.format_float_positional(np.float32(value), unique=True, trim="-")
