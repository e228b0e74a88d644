"""The tables of model-architectures.md say what the worker does with models of each architecture, or why it refuses."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import Value, tiny_model
from tests.models.loading.ability_table import abilities, abilities_table, refusals_table, served
from worker.errors import BadModelFile
from worker.models.facts.info import read_info
from worker.models.upstream.architectures import OTHER_SHAPES

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "model-architectures.md").read_text()

pytestmark = pytest.mark.timeout(900)
"""Some 130 loads and dry runs take three minutes of a processor, which other tests may want, too."""

found = cache(abilities)


@pytest.mark.model
def test_a_model_of_every_architecture_is_loaded() -> None:
    failed = {name: said for name, said in found().items() if said is None or "error" in said}
    assert not failed
    assert len(found()) == len(served()) > 100


@pytest.mark.model
def test_the_page_has_what_was_found() -> None:
    assert abilities_table(found()) in PAGE, "python -m tests.models.loading.ability_table prints the new table"


@pytest.mark.model
def test_what_is_said_of_the_cache_is_what_the_memory_can_do() -> None:
    """The reason is given from the file alone, and the memory is the library's: the two must agree."""
    said: dict[str, dict[str, Any]] = {name: said for name, said in found().items() if said}
    assert {name for name, each in said.items() if (each["obstacle"] is None) != each["shares"]} == set()
    assert {name: each["cache_off"] for name, each in said.items()} == {
        name: each["obstacle"] for name, each in said.items()
    }


@pytest.mark.model
def test_what_is_said_of_drafts_is_what_the_memory_can_do() -> None:
    said: dict[str, dict[str, Any]] = {name: said for name, said in found().items() if said}
    assert {name for name, each in said.items() if (each["drafts_off"] is None) != each["has_row_costs"]} == set()


@pytest.mark.model
def test_cells_and_states_take_what_is_planned() -> None:
    """Within 4 %; llama.cpp says the taken bytes in hundredths of a MiB."""
    said: dict[str, dict[str, Any]] = {name: said for name, said in found().items() if said}
    off = {name: each for name, each in said.items() if abs(each["planned_bytes"] / each["taken_bytes"] - 1) > 0.04}
    assert not off


def test_the_page_has_what_is_refused_and_why() -> None:
    assert refusals_table() in PAGE


@pytest.mark.parametrize("architecture", OTHER_SHAPES)
def test_a_model_that_cannot_generate_is_refused_with_the_reason(architecture: str, tmp_path: Path) -> None:
    path = tiny_model({"general.architecture": architecture}).write(tmp_path / "m.gguf")
    with pytest.raises(BadModelFile) as caught:
        read_info(path)
    assert str(caught.value) == (
        f"{path}: its architecture is {architecture}, which cannot be served: {OTHER_SHAPES[architecture]}. "
        "Use a model that generates text token by token"
    )


@pytest.mark.parametrize(("is_causal", "refused"), [(False, True), (True, False), (None, False)])
def test_a_model_that_looks_ahead_by_a_key_is_refused(is_causal: bool | None, *, refused: bool, tmp_path: Path) -> None:
    changes: dict[str, Value | None] = {"llama.attention.causal": is_causal}
    path = tiny_model(changes).write(tmp_path / "m.gguf")
    if not refused:
        assert read_info(path).architecture == "llama"
        return
    with pytest.raises(BadModelFile, match=r"its tokens look at later ones, by attention\.causal"):
        read_info(path)
