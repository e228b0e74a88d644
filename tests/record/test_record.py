"""The worker answers what tests/record/*.jsonl says. What depends on the machine is left to `make record`."""

import pytest

from tests.record.__main__ import FOLDER, asked_again
from tests.record.rows import differences, read


@pytest.mark.process
@pytest.mark.parametrize("part", ["routes", "templates"])
def test_answers_are_those_of_the_record(part: str) -> None:
    recorded = read(FOLDER / f"{part}.jsonl")
    assert not [*differences(recorded, asked_again(part, recorded))]
