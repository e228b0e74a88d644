"""`bench account`: every step is told once, and what is told adds up to the whole."""

from pathlib import Path

import pytest

from tools.bench.__main__ import run
from tools.bench.account import Ran, Run, name_of, rows_of
from tools.made_model import SHAPES, made_model
from worker.engine.backend import Slice, Step
from worker.wire.messages import Sampling, SlotId, TokenId

GREEDY = Sampling(seed=0, temperature=0.0)


def decode_step(*n_drafts: int) -> Step:
    """A decode step of as many streams as numbers, each with so many drafts."""
    slices = (Slice(SlotId(slot), 0, [TokenId(0)] * (1 + n), GREEDY, n_drafts=n) for slot, n in enumerate(n_drafts))
    return Step("decode", tuple(slices))


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (Step("prefill", (Slice(SlotId(0), 0, [TokenId(0)] * 3, None),)), "prefill"),
        (decode_step(0), "decode, 1 rows or more"),
        (decode_step(0, 0, 0), "decode, 2 rows or more"),
        (decode_step(3), "decode, 4 rows or more, drafts among them"),
        (decode_step(*[0] * 15), "decode, 12 rows or more"),
        (decode_step(*[0] * 64), "decode, 32 rows or more"),
    ],
)
def test_a_step_is_told_by_its_width(step: Step, name: str) -> None:
    assert name_of(step) == name


def test_medians_of_the_runs_are_told_and_what_is_no_step_is_the_engines_own() -> None:
    runs = [
        Run((Ran("prefill", 8, 2.0 * i, 1.9 * i), Ran("decode, 1 rows or more", 1, 1.0 * i, 0.8 * i)), 4.0 * i)
        for i in (1, 2, 3)
    ]
    assert rows_of(runs) == [
        ("prefill", "1", "8", "3.80", "3800.0", "47.5%"),
        ("decode, 1 rows or more", "1", "1", "1.60", "1600.0", "20.0%"),
        ("drawing", "", "", "0.60", "", "7.5%"),
        ("the engine's own", "", "", "2.00", "", "25.0%"),
        ("all", "", "", "8.00", "", "100.0%"),
    ]


@pytest.mark.model
def test_all_tokens_of_a_real_run_are_accounted_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(made_model(tmp_path, SHAPES["tiny"]))
    arguments = ["--model", model, "--streams", "2", "--rounds", "1", "--no-lookup"]
    assert run(["account", *arguments, "--cache-type-k", "f16", "--cache-type-k", "f32"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows].count("all") == 2
    decoded = sum(int(row[2]) for row in rows if row[0].startswith("decode"))
    assert decoded == 2 * 2 * 95, "each stream's first token is drawn behind its prompt"
