"""The choice is within the limit, as close as any that is, and the fastest of those; the picture has every pair."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.config.settings import Settings
from worker.errors import UsageError
from parity import advice, plot
from parity.advice import CACHES, Option, choose, frontier
from parity.case import Case
from parity.estimates import Estimate
from parity.evidence import SHORT
from parity.matrix import FILE_TYPES


def option(file_type: str, cache: str, memory: int, kl: float, *, reach: float = 0.0, rate: float = 1.0) -> Option:
    return Option(
        file_type=file_type,
        cache=cache,
        file_bytes=memory // 2,
        memory_bytes=memory,
        kl=Estimate(kl, kl - reach, kl + reach),
        top1=Estimate(0.9, 0.8, 1.0),
        tokens_per_s=rate,
    )


@st.composite
def options(draw: st.DrawFn) -> list[Option]:
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(FILE_TYPES), st.sampled_from(tuple(CACHES))), min_size=1, unique=True)
    )
    sizes, errors = st.integers(1, 20), st.floats(1e-6, 1.0)
    return [
        option(*pair, draw(sizes), draw(errors), reach=draw(errors) / 10, rate=draw(st.floats(1.0, 500.0)))
        for pair in pairs
    ]


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


@given(options(), st.integers(0, 21))
def test_the_choice_is_within_the_limit_and_nothing_there_is_surely_closer(found: list[Option], limit: int) -> None:
    chosen = choose(found, limit)
    within = [each for each in found if each.memory_bytes <= limit]
    if chosen is None:
        assert not within
        return
    assert chosen in within
    assert not any(each.kl.high < chosen.kl.low for each in within)
    closest = min(within, key=lambda each: each.kl.value)
    assert chosen.tokens_per_s >= closest.tokens_per_s


@given(options(), st.integers(0, 21), st.integers(0, 21))
@example(
    [
        option("Q4_0", "auto", 1, 0.5),
        option("Q8_0", "auto", 2, 0.45, reach=0.2),  # closest, but hardly known
        option("Q5_0", "auto", 2, 0.6, rate=100.0),
    ],
    1,
    2,
)
def test_more_memory_is_never_a_choice_that_is_surely_worse(found: list[Option], one: int, other: int) -> None:
    less, more = (choose(found, limit) for limit in sorted((one, other)))
    if less is not None:
        assert more is not None
        assert more.kl.low <= less.kl.high


@given(options())
def test_every_pair_is_on_the_frontier_or_beaten_by_one_that_is(found: list[Option]) -> None:
    best = frontier(found)
    assert best
    for each in found:
        mine = (each.memory_bytes, each.kl.value)
        as_good = [other for other in best if other.memory_bytes <= mine[0] and other.kl.value <= mine[1]]
        assert as_good
        if each in best:
            assert all((other.memory_bytes, other.kl.value) == mine for other in as_good)


# ── what is shown ────────────────────────────────────────────────────────────────────────────────

TRIED = (
    option("Q8_0", "auto", 300_000_000, 0.004, reach=0.001, rate=130.0),
    option("Q4_0", "auto", 200_000_000, 0.3, reach=0.05, rate=200.0),
    option("Q8_0", "q4_0", 310_000_000, 0.05, reach=0.01, rate=120.0),
)


def test_the_table_marks_the_choice_and_what_nothing_beats() -> None:
    shown = advice.table(TRIED, TRIED[0])
    assert [row[0] for row in shown.rows] == ["→◆", "◆", ""]
    assert shown.rows[0][1:5] == ("Q8_0", "auto", "143.1", "286.1")


@pytest.mark.parametrize("limit", [250_000_000, 10**9])
def test_the_picture_names_all_that_was_tried(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    plot.check(path)
    plot.plot(TRIED, choose(TRIED, limit), limit, path, "a model")
    drawn = path.read_text()
    for word in ("a model", "cache auto", "cache q4_0", "Q8_0", "Q4_0", "the choice", "mean KL to the reference, nats"):
        assert f"<!-- {word} -->" in drawn
    assert ("<!-- the limit -->" in drawn) == (limit < 10**9)


@pytest.mark.parametrize(
    ("name", "complaint"), [("plot.txt", r"must end in \.svg, \.png or \.pdf"), ("nowhere/plot.svg", "is no folder")]
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_measured(
    name: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        plot.check(tmp_path / name)


# ── the default model ────────────────────────────────────────────────────────────────────────────


def measured(short_case: Case, file_types: Sequence[str], caches: Sequence[str], **settings: int) -> dict[str, Option]:
    how = Settings(model="any", device="cpu", parallel=2, **settings)  # type: ignore[arg-type]  # numbers all
    found = advice.measure(short_case, how, file_types, caches, n_tokens=SHORT, say=lambda _: None)
    return {f"{each.file_type} {each.cache}": each for each in found}


@pytest.mark.model
@pytest.mark.torch
def test_pairs_are_measured_as_they_would_be_served(short_case: Case) -> None:
    found = measured(short_case, ("Q8_0", "Q4_0"), ("auto", "q4_0"), ctx_size=4096)
    assert list(found) == ["Q8_0 auto", "Q8_0 q4_0", "Q4_0 auto", "Q4_0 q4_0"]
    exact, rounded = found["Q8_0 auto"], found["Q8_0 q4_0"]
    assert exact.file_bytes == rounded.file_bytes > found["Q4_0 auto"].file_bytes
    assert exact.memory_bytes > rounded.memory_bytes > found["Q4_0 q4_0"].memory_bytes
    assert exact.kl.value < rounded.kl.value
    assert exact.kl.value < found["Q4_0 auto"].kl.value
    assert all(each.tokens_per_s > 0 for each in found.values())
    assert list(short_case.subject.work.iterdir()) == []
    (twice,) = measured(short_case, ("Q8_0",), ("auto",), ctx_size=8192).values()
    assert twice.memory_bytes > exact.memory_bytes


@pytest.mark.model
@pytest.mark.torch
def test_without_weights_to_quantise_it_is_refused(short_case: Case) -> None:
    with pytest.raises(UsageError, match="advice needs weights to quantise"):
        measured(replace(short_case, f32_copy=None), ("Q8_0",), ("auto",))
