"""Agents' requests are read at default settings: nothing of them is refused, and what changes nothing is named."""

import json

import msgspec
import pytest

from tests.agents.shapes import SHAPES, Shape, text_of
from tests.apis.asking import talk
from tests.config.given import settings_of
from worker.apis.chat.request import read_chat
from worker.apis.core.answers import StreamOptions
from worker.apis.core.request import Request, Terms
from worker.config.engine_settings import MAX_PROMPT_CHARS

CONTEXT = 8192
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def default_terms() -> Terms:
    """The terms of a worker that is started with a model and no other option."""
    settings = settings_of(["--model", "any"])
    return Terms(
        model="any",
        is_strict=settings.strict_model,
        max_tokens_out=settings.max_tokens_out or CONTEXT,
        max_text_chars=MAX_PROMPT_CHARS,
        n_ctx=2048,
        vocab_size=32_000,
        template_keys=frozenset(),
    )


def read(shape: Shape) -> Request:
    return read_chat(json.dumps(shape.body).encode(), default_terms())


@every_shape
def test_every_message_is_read_whole_and_in_order(shape: Shape) -> None:
    messages = msgspec.json.decode(talk(read(shape)).messages)
    assert [(message["role"], message["content"]) for message in messages] == [
        (message["role"], text_of(message)) for message in shape.body["messages"]
    ]


@every_shape
def test_what_changes_nothing_is_named_and_nothing_else(shape: Shape) -> None:
    assert {*read(shape).ignored} == shape.ignored


@every_shape
def test_the_answer_is_asked_for_as_it_is_sent(shape: Shape) -> None:
    asked = read(shape)
    assert (asked.is_stream, asked.options) == (True, StreamOptions(include_usage=True))
    sampling = {name: getattr(asked.params, name) for name in ("temperature", "top_p", "top_k")}
    assert sampling == {name: pytest.approx(shape.body.get(name, value)) for name, value in sampling.items()}


def test_a_context_of_8192_tokens_is_too_small_for_some_and_none_needs_32768() -> None:
    assert {shape.has_room(8192) for shape in SHAPES} == {True, False}
    assert all(shape.has_room(32_768) for shape in SHAPES)
