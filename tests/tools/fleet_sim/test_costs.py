"""The file of step costs: what is between the measured points, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from tests.tools.fleet_sim.made import COSTS
from tools.fleet_sim.costs import as_json, read_costs
from worker.errors import UsageError


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(as_json(COSTS))
    assert read_costs(path) == COSTS


def test_the_costs_that_come_with_the_simulation_can_be_read() -> None:
    read_costs(Path(__file__).parents[3] / "tools" / "fleet_sim" / "costs.json")


def test_between_two_points_costs_are_linear_and_beyond_the_last_they_go_on() -> None:
    costs = msgspec.structs.replace(COSTS, parallel=6)
    assert [1000 * costs.step_s("decode", rows) for rows in (1, 2, 4, 6)] == pytest.approx([8, 12, 20, 28])


def test_cells_cost_every_row_and_those_of_others_less() -> None:
    assert 1000 * COSTS.step_s("decode", 4, 4 * 2_000, 4 * 3_000) == pytest.approx(20 + 4 * 2 * 0.5 + 4 * 3 * 0.1)


def test_more_rows_never_cost_less() -> None:
    noisy = msgspec.structs.replace(COSTS, decode_ms=((1, 8.0), (2, 7.0), (4, 20.0)))
    times = [noisy.step_s("decode", rows) for rows in (1, 2, 3, 4)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("decode_ms", [[2, 8.0]], "decode_ms must have ascending numbers of rows from 1 on"),
        ("prefill_ms", [[1, 8.0], [1, 9.0]], "prefill_ms must have ascending"),
        ("prefill_ms", [[1, 0.0]], "times above 0"),
        ("cells", "many", "Expected `int`"),
        ("cels", 1, "unknown field `cels`"),
    ],
)
def test_what_is_no_file_of_costs_is_one_clear_error(member: str, value: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(COSTS), member: value}))
    with pytest.raises(UsageError, match=f"--costs .*{words}"):
        read_costs(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        read_costs(tmp_path / "missing.json")
