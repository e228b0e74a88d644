"""No schema and no regular expression ends the engine, holds it up or eats its memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.constraints.bytewise import byte, constrain, mask_of, submit
from tests.constraints.hostile_constraints import HOSTILE, Taken
from worker.constraints.answer import AnswerConstraint
from worker.constraints.constraint import LIMITS_OF
from worker.constraints.jobs import Constraints
from worker.constraints.trial import MAX_CPU_S
from worker.server.front.children import engine_environment
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation

SLOWNESS = 3.0
"""The slowness of machines that run tests, which others use too, against one whose processors are its own."""

MAX_COMPILING_S = 1.0
MAX_MASK_S = 0.3
"""Two targets of the time between a neighbour's tokens (`--itl-target-ms`)."""
MAX_GROWTH_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def all_taken(default_model: Path) -> list[Taken]:
    command = [sys.executable, "-m", "tests.constraints.hostile_constraints", str(default_model)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=engine_environment())
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, (lines[-1], child.stderr[-1000:])
    return [Taken(**line) for line in lines if "begun" not in line]


@pytest.mark.model
@pytest.mark.process
def test_none_ends_the_process(all_taken: list[Taken]) -> None:
    assert [taken.name for taken in all_taken] == list(HOSTILE)


@pytest.mark.model
@pytest.mark.process
def test_each_is_compiled_or_refused_within_a_second_of_processor_time(all_taken: list[Taken]) -> None:
    slow = {taken.name: taken.compiling_s for taken in all_taken if taken.compiling_s > SLOWNESS * MAX_COMPILING_S}
    assert not slow


@pytest.mark.model
@pytest.mark.process
def test_no_step_is_delayed_for_long(all_taken: list[Taken]) -> None:
    times = {taken.name: (taken.longest_mask_s, taken.longest_forcing_s) for taken in all_taken}
    assert not {name: both for name, both in times.items() if max(both) > SLOWNESS * MAX_MASK_S}


@pytest.mark.model
@pytest.mark.process
def test_memory_stays_where_it_was(all_taken: list[Taken]) -> None:
    """After all of them, and nearly so after each."""
    before = all_taken[0].resident_bytes
    grown = {taken.name: taken.resident_bytes - before for taken in all_taken}
    assert not {name: n_bytes for name, n_bytes in grown.items() if n_bytes > 1.5 * MAX_GROWTH_BYTES}
    assert grown[all_taken[-1].name] <= MAX_GROWTH_BYTES


@pytest.mark.model
@pytest.mark.process
def test_a_refusal_is_one_short_line(all_taken: list[Taken]) -> None:
    for taken in all_taken:
        assert "\n" not in taken.refusal, taken.name
        assert len(taken.refusal) < 300, taken.name
        assert "panic" not in taken.refusal, taken.name


def test_what_hangs_the_library_is_refused(constraints: Constraints) -> None:
    for text in ("a?" * 15_000 + "a" * 15_000, ".*?" * 20_000):
        found = constraints.constrain(submit(regex=text))
        assert isinstance(found, Violation)
        assert "too large or too complex" in found.message


def test_a_job_that_meets_a_limit_takes_no_other_with_it(constraints: Constraints) -> None:
    """The others have the same text, before or after it."""
    wild = "(a|b)*a(a|b){40}"
    before = constrain(constraints, regex=wild)
    with pytest.raises(ValueError, match="too costly"):
        _wander(constrain(constraints, regex=wild), 20 * LIMITS_OF["regex"].max_lexer_states)
    after = constrain(constraints, regex=wild)
    for other in (before, after):
        _wander(other, 50)


def _wander(constraint: AnswerConstraint, n_tokens: int) -> None:
    rng = np.random.default_rng(0)
    for letter in rng.choice([*b"ab"], n_tokens):
        assert mask_of(constraint)[byte(letter)]
        constraint.accept(TokenId(byte(letter)))


def test_the_trial_has_the_limits_of_the_law() -> None:
    assert 2 * MAX_CPU_S <= MAX_COMPILING_S
