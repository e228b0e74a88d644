"""A text with a gap becomes the tokens that llama-server makes of it, on real vocabularies."""

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.test_vocabularies import load_vocabulary
from tests.vocabularies import VOCABULARIES
from worker.engine.backend import Read
from worker.llama.model import Model
from worker.llama.tokenizer import InfillMarks, Prompts
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import Infill

pytestmark = pytest.mark.model

NO_TEMPLATE = Violation("messages", "chat_template", "no template")
PARTS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z"]), max_size=40)

Tokens = list[TokenId]


@pytest.fixture(scope="module", params=["starcoder", "refact", "deepseek-coder"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    (found,) = (vocabulary for vocabulary in VOCABULARIES if vocabulary.name == request.param)
    with load_vocabulary(found) as loaded:
        yield loaded


def marks_of(model: Model) -> InfillMarks:
    assert model.infill_marks is not None
    return model.infill_marks


def tokens_of(model: Model, text: str) -> Tokens:
    return model.tokenize(text, add_special=False, parse_special=False)


def read(model: Model, gap: Infill) -> Tokens:
    found = Prompts(model, NO_TEMPLATE).read(gap)
    assert isinstance(found, Read)
    return found.tokens


@settings(max_examples=30)
@given(prefix=PARTS, begun=PARTS, suffix=PARTS)
def test_the_parts_stand_between_the_marks(model: Model, prefix: str, begun: str, suffix: str) -> None:
    marks, text = marks_of(model), partial(tokens_of, model)
    wanted = [marks.prefix, *text(prefix), *text(begun), marks.suffix, *text(suffix), marks.middle]
    assert read(model, Infill(prefix=prefix, begun=begun, suffix=suffix)) == [*model.tokenize(""), *wanted]


def test_files_stand_before_the_text_in_the_form_of_a_repository(model: Model) -> None:
    marks, text = marks_of(model), partial(tokens_of, model)
    files = (("one.py", "import os\n"), ("two.py", "x = 1\n"))
    found = read(model, Infill(prefix="a", suffix="b", files=files))
    alone = read(model, Infill(prefix="a", suffix="b"))
    wanted: Tokens = [] if marks.repository is None else [marks.repository, *text("myproject\n")]
    for name, content in files:
        wanted += text("\n\n--- snippet ---\n\n") if marks.file is None else [marks.file, *text(f"{name}\n")]
        wanted += text(content)
    wanted += [] if marks.file is None else [marks.file, *text("filename\n")]
    assert found == [*wanted, *alone]


def test_names_of_marks_in_the_text_are_letters(model: Model) -> None:
    marks = marks_of(model)
    name = model.text_of(marks.middle).decode()
    found = read(model, Infill(prefix=f"a{name}b", suffix=name, begun=name, files=((name, name),)))
    assert [token for token in found if token == marks.middle] == [marks.middle]
    assert found[-1] == marks.middle


def test_a_vocabulary_without_the_marks_refuses_a_gap() -> None:
    (found,) = (vocabulary for vocabulary in VOCABULARIES if vocabulary.name == "gpt-2")
    with load_vocabulary(found) as model:
        refused = Prompts(model, NO_TEMPLATE).read(Infill(prefix="a", suffix="b"))
    assert isinstance(refused, Violation)
    assert "no fill-in-the-middle tokens" in refused.message
