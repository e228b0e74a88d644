"""The bounds file: built-in values, a user's own over them, and every way to get one wrong."""

from math import inf, nan
from pathlib import Path

import pytest

from parity.bounds import Bound, Bounds
from parity.setups import ROUNDED
from worker.config.engine_settings import CACHE_TYPES
from worker.errors import UsageError

BOUNDS = Bounds({"a.b": Bound(0.5, "at most", "measured"), "a.other": Bound(2.0, "at least", "counted")})


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("value", "key", "holds"),
    [
        (0.5, "a.b", True),
        (0.51, "a.b", False),
        (2.0, "a.other", True),
        (1.9, "a.other", False),
        (nan, "a.b", False),
        (inf, "a.other", False),
    ],
)
def test_a_value_on_the_bound_holds_and_one_that_is_no_number_never_does(value: float, key: str, holds: bool) -> None:
    assert BOUNDS.check("x", value, key).holds is holds


def test_the_special_bound_is_taken_before_the_general_one() -> None:
    assert BOUNDS.bound("a.none", "a.b") == Bound(0.5, "at most", "measured")
    with pytest.raises(KeyError):
        BOUNDS.bound("a.none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[logits]\nkl = 1.0", "logits.kl is not a table"),
        ("[logits]\nkl = { at_most = 1.0 }", "needs exactly one of at_most and at_least, and a reason"),
        ("[logits]\nkl = { at_most = 1.0, at_least = 0.0, reason = 'r' }", "exactly one"),
        ("[logits]\nkl = { at_most = 1.0, at_lest = 0.0, reason = 'r' }", "exactly one"),
        ("[logits]\nkl = { at_most = 'low', reason = 'r' }", "a finite number is needed"),
        ("[logits]\nkl = { at_most = nan, reason = 'r' }", "a finite number is needed"),
        ("[logits]\nkl = { at_most = 1.0, reason = ' ' }", "a reason"),
        ("[nonsense]\nkl = { at_most = 1.0, reason = 'r' }", "there is no bound nonsense.kl"),
        ("[logits", "not a bounds file"),
    ],
)
def test_a_bad_bounds_file_is_one_line_that_names_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Bounds.load(own(tmp_path, text))


def test_a_missing_bounds_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        Bounds.load(tmp_path / "nowhere.toml")


def test_what_a_cache_type_or_a_backend_costs_is_allowed_next_to_the_bound_with_its_reason() -> None:
    more = {"more.q4": Bound(0.25, "at most", "rounded to 4 bits"), "more.gpu": Bound(0.125, "at most", "elsewhere")}
    bounds = Bounds({"a.b": Bound(0.5, "at most", "measured"), "a.c": Bound(0.75, "at least", "counted"), **more})
    keys = ("more.q4", "more.none", "more.gpu")
    found = bounds.check("x", 0.875, "a.b", allowances=keys)
    assert (found.holds, found.bound) == (True, 0.875)
    assert found.reason == "measured; and rounded to 4 bits; and elsewhere"
    assert not bounds.check("x", 0.875, "a.b", allowances=keys[:2]).holds
    assert bounds.check("x", 0.375, "a.c", allowances=keys).holds
    assert not bounds.check("x", 0.374, "a.c", allowances=keys).holds


def test_every_cache_type_that_is_quantised_has_its_word() -> None:
    assert set(ROUNDED) == set(CACHE_TYPES) - {"f32", "f16", "bf16"}
