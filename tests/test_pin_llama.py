"""scripts/pin_llama.py: every place names the same release, and nothing else there changes."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import script_module

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_module("pin_llama")


@pytest.fixture
def copy(script: ModuleType, tmp_path: Path) -> Path:
    for name in script.PINS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_place_names_one_release(script: ModuleType) -> None:
    assert len(set(script.pinned(ROOT).values())) == 1


def test_another_release_takes_the_place_of_this_one_and_nothing_else_changes(script: ModuleType, copy: Path) -> None:
    before = {name: (copy / name).read_text() for name in script.PINS}
    (ours,) = set(script.pinned(copy).values())
    script.pin(copy, "9.8.7")
    assert set(script.pinned(copy).values()) == {"9.8.7"}
    script.pin(copy, ours)
    assert {name: (copy / name).read_text() for name in script.PINS} == before


def test_a_place_without_the_pin_is_named(script: ModuleType, copy: Path) -> None:
    (copy / "constraints.txt").write_text("")
    with pytest.raises(SystemExit, match=r"constraints\.txt: 0 lines pin"):
        script.pin(copy, "9.8.7")
