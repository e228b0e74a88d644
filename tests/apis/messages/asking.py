"""Requests of `/v1/messages` for the tests of what becomes of them."""

from typing import Any

from tests.apis.asking import TERMS, body
from worker.apis.core.request import Request, Terms
from worker.apis.messages.request import read_messages

HELLO = [{"role": "user", "content": "Hello"}]


def asked(terms: Terms = TERMS, **fields: Any) -> Request:
    return read_messages(body({"max_tokens": 8, "messages": HELLO, **fields}), terms)
