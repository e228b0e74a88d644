"""A draft model must have the vocabulary of the model that it drafts for."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.errors import ModelLoadFailed
from worker.llama.model import Model
from worker.models.loading.contexts import check_same_vocabulary


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Model]]:
    """A tiny model, with what its vocabulary has beyond bytes."""
    models = ExitStack()

    def load(**vocabulary: Any) -> Model:
        path = write_tiny(tmp_path / "tiny.gguf", **vocabulary)
        return models.enter_context(loaded_on_cpu(path))

    with models:
        yield load


@pytest.mark.model
def test_the_same_vocabulary_passes(load: Callable[..., Model]) -> None:
    check_same_vocabulary("d.gguf", load(characters="é"), load(characters="é"))


@pytest.mark.model
@pytest.mark.parametrize(
    ("draft", "served", "difference"),
    [
        ({}, {"characters": "é"}, "it has 262 tokens, the model's has 263"),
        ({"characters": "è"}, {"characters": "é"}, "token 262 is 'è' there, 'é' in the model's"),
    ],
)
def test_the_first_difference_of_two_vocabularies_is_named(
    load: Callable[..., Model], draft: dict[str, str], served: dict[str, str], difference: str
) -> None:
    said = (
        f"--draft-model d.gguf: its vocabulary is not the model's: {difference}; use a draft model of the same family"
    )
    with pytest.raises(ModelLoadFailed, match=re.escape(said)):
        check_same_vocabulary("d.gguf", load(**draft), load(**served))
