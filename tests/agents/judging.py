"""What an agent's request may be answered: a stream, or the words by which agents know that the context is full."""

import re

import httpx2

from tests.agents.shapes import Shape
from tests.web.openai_client import refusal

A_TOKEN = 4
"""How many characters of the texts make a token, about: between 3.9 and 4.5, as the vocabularies have it."""
OVERFLOW = re.compile(
    r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens"
)


def has_room(shape: Shape, context: int) -> bool:
    """Whether the messages are fewer tokens than that. No shape is near the limit of a model that is tried."""
    return shape.n_characters < A_TOKEN * context


def check_overflow(response: httpx2.Response, context: int) -> None:
    response.read()
    assert response.status_code == 400, response.text
    error = refusal(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    found = OVERFLOW.search(error["message"])
    assert found is not None, error["message"]
    limit, n_tokens = map(int, found.groups())
    assert limit == context <= n_tokens
