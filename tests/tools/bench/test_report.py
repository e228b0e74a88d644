"""The report as a record."""

import msgspec
import pytest

from tests.tools.bench.made_report import report
from tools.bench.processes import Memory
from tools.bench.report import MB, Report, Resident, resident_of


def mb(n: int) -> Memory:
    """Half of it from mapped files."""
    return Memory(n * MB, n * MB // 2)


def test_a_report_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(report()), type=Report) == report()


@pytest.mark.parametrize(
    ("engine_mb", "verdict"), [(100, "holds"), (580, "holds"), (581, "MISSED")], ids=["less", "at most", "more"]
)
def test_our_engine_may_have_80_mb_more_than_the_peer(engine_mb: int, verdict: str) -> None:
    found = resident_of({"ours": {"front": mb(60), "engine": mb(engine_mb)}, "peer": {"server": mb(500)}})
    assert found == [
        Resident("ours, front", mb(60), 120 * MB, "holds"),
        Resident("ours, engine", mb(engine_mb), 580 * MB, verdict),  # type: ignore[arg-type] # one of the two
        Resident("peer", mb(500), None, ""),
    ]


def test_what_cannot_be_looked_into_is_left_out() -> None:
    assert resident_of({"ours": {"front": None, "engine": mb(5)}, "peer": {}}) == [
        Resident("ours, engine", mb(5), None, "")
    ]
