"""Bodies that are small to send and large, deep or odd to read, at every route that reads one.

Each is answered within a moment, by one error or an ordinary answer, and health is answered as well.
"""

import json
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.server.web.wire import JSON
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.process

MOST_BYTES = 2_000_000
PATIENCE_S = 10.0
"""Bombs like these take other servers minutes; the worker needs milliseconds, and a busy machine some more."""

TURNS = b'"messages":[{"role":"user","content":"a"}]'
ROUTES: dict[str, bytes] = {
    "/execute": b'"job_id":"a","max_tokens":1,"prompt":"a"',
    "/cancel": b'"job_id":"a"',
    "/v1/completions": b'"prompt":"a","max_tokens":1',
    "/v1/chat/completions": TURNS + b',"max_tokens":1',
    "/v1/responses": b'"input":"a","max_output_tokens":1',
    "/v1/messages": TURNS + b',"max_tokens":1',
    "/v1/messages/count_tokens": TURNS,
    "/v1/responses/input_tokens": b'"input":"a"',
    "/tokenize": b'"prompt":"a"',
    "/detokenize": b'"tokens":[9]',
    "/infill": b'"input_prefix":"a","input_suffix":"b","n_predict":1',
    "/v1/completions/render": b'"prompt":"a"',
    "/v1/chat/completions/render": TURNS,
}
"""The members of a small request that is right."""

FEW_FIELDS = (b"seed", b"json_schema", b"unknown")
FIELDS = (*FEW_FIELDS, b"temperature", b"logit_bias", b"stop", b"tools", b"messages", b"chat_template_kwargs")
FEW_OTHERS = ("seed", "temperature")
OTHERS = (*FEW_OTHERS, "top_k", "n", "logprobs", "stop", "stream", "grammar", "cache_salt", "unknown")

few_or_all = pytest.mark.parametrize("are_all", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["few", "all"])
EDGES = (
    *(b"0", b"-0", b"-1", b"-0.0", b"1e-400", b"1e400", b"-1e400", b"0.1e1", b"1E+2", b"4.9e-324"),
    *(b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"18446744073709551615"),
    *(b"18446744073709551616", b"-9223372036854775809", b"1" * 310, b"0." + b"0" * 400 + b"1", b"1e999999999999"),
    *(b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x10", b"1_000", b"\xd9\xa1"),
    *(b"true", b"null", b'""', b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b"[[[[]]]]", b'{"":{"":{}}}'),
)


def bombs(fields: tuple[bytes, ...]) -> Iterator[tuple[str, bytes]]:
    """Members that are added to a request, with the name of what they are."""
    for field in fields:
        name = b'"' + field + b'":'
        yield f"{field.decode()} is a number of two million digits", name + b"9" * MOST_BYTES
        yield f"{field.decode()} is a fraction of two million digits", name + b"0." + b"9" * MOST_BYTES
        yield f"{field.decode()} is 900,000 lists in each other", name + b"[" * 900_000 + b"]" * 900_000
        yield f"{field.decode()} is 300,000 objects in each other", name + b'{"":' * 300_000 + b"1" + b"}" * 300_000
        yield f"{field.decode()} is 900,000 items", name + b"[" + b"1," * 900_000 + b"1]"
        keys = b",".join(b'"%d":1' % i for i in range(150_000))
        yield f"{field.decode()} has 150,000 members", name + b"{" + keys + b"}"
        yield f"{field.decode()} is given 100,000 times", b",".join([name + b"1"] * 100_000)
    yield "100,000 unknown members", b",".join(b'"x%d":1' % i for i in range(100_000))
    yield "a name of two million characters", b'"' + b"x" * MOST_BYTES + b'":1'
    yield "300,000 escapes", b'"stop":"' + b"\\u0000" * 300_000 + b'"'
    yield "two million spaces", b" " * MOST_BYTES + b'"x":1'


def ask(client: httpx2.Client, path: str, body: bytes) -> httpx2.Response:
    return client.post(path, content=body, headers={"content-type": JSON})


def check(answer: httpx2.Response, said: str) -> None:
    assert answer.status_code < 500, (said, answer.text[:300])
    assert len(answer.content) < 64 * 1024, (said, "an answer to a bomb is small")
    assert answer.status_code in {200, 202} or answer.text.strip(), said


@few_or_all
@pytest.mark.parametrize("path", ROUTES)
def test_a_bomb_is_answered_at_once_and_never_with_a_server_error(
    toy: WorkerProcess, path: str, *, are_all: bool
) -> None:
    with toy.client() as client:
        for said, members in bombs(FIELDS if are_all else FEW_FIELDS):
            began_s = time.monotonic()
            check(ask(client, path, b"{" + ROUTES[path] + b"," + members + b"}"), said)
            assert time.monotonic() - began_s < PATIENCE_S, said
        assert client.get("/health").status_code == 200


@few_or_all
@pytest.mark.parametrize("path", ROUTES)
def test_numbers_at_the_edges_are_answered(toy: WorkerProcess, path: str, *, are_all: bool) -> None:
    """Each value in each field that is a number or might be taken for one, and as the whole body."""
    request = json.loads(b"{" + ROUTES[path] + b"}")
    with toy.client() as client:
        for value in EDGES:
            check(ask(client, path, value), value.decode())
            for field in (*request, *(OTHERS if are_all else FEW_OTHERS)):
                members = [
                    f'"{name}":'.encode() + json.dumps(other).encode()
                    for name, other in request.items()
                    if name != field
                ]
                body = b"{" + b",".join([*members, f'"{field}":'.encode() + value]) + b"}"
                check(ask(client, path, body), f"{field}: {value.decode()}")


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_given_twice_has_one_meaning(toy: WorkerProcess, path: str) -> None:
    """`/execute` and `/cancel` refuse it, as the old workers did; at the other routes the last one counts, as with
    OpenAI. Either way the two spellings of a name are one name."""
    field = next(iter(json.loads(b"{" + ROUTES[path] + b"}")))
    spelled = "".join(f"\\u{ord(letter):04x}" for letter in field)
    with toy.client() as client:
        for name in (field, spelled):
            before = f'"{name}":[[]],'.encode() + ROUTES[path]
            after = ROUTES[path] + f',"{name}":[[]]'.encode()
            first, second = (ask(client, path, b"{" + members + b"}").status_code for members in (before, after))
            if path in ("/execute", "/cancel"):
                assert (first, second) == (422, 422)
            else:
                assert first == ask(client, path, b"{" + ROUTES[path] + b"}").status_code
                assert second == 400
