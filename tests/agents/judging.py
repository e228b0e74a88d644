"""The answers that an agent's request may get: a stream, or the words that tell agents that the context is full."""

import re

import httpx2

from tests.agents.shapes import Shape
from tests.server.web.openai_client import refusal

A_TOKEN = 4
"""The number of characters in a token of the texts, rounded: 3.9 to 4.5, depending on the vocabulary."""
OVERFLOW = re.compile(
    r"This model's maximum context length is (\d+) tokens\. However, your messages resulted in (\d+) tokens"
)


def has_room(shape: Shape, context: int) -> bool:
    """True if the messages fit in the context. No shape is near the limit of a model that is tried."""
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
