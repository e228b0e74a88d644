"""The table of faults names tests that exist."""

import ast
import tomllib
from pathlib import Path

import pytest

from tests.faults.test_under_faults import FAULTS

ROOT = Path(__file__).parents[2]
KINDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text())
UNDER = "under"


@pytest.mark.parametrize("kind", [kind for kind, test in KINDS.items() if test != UNDER])
def test_each_kind_of_fault_has_a_test(kind: str) -> None:
    path, _, name = KINDS[kind].partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_those_that_come_and_go_under_streams_are_all_there() -> None:
    assert {kind for kind, test in KINDS.items() if test == UNDER} == set(FAULTS)
