"""Pictures and files that no model reads do not count among what a body may have, and are not held.

Nor do they, or answers that come before them, get lost in nginx or in a browser. Bodies that are large, deep or odd to
read are answered within a moment, by one error or an ordinary answer, and health is answered as well.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.chromium import Browser, chromium
from tests.gguf_files import tiny_model
from tests.nginx_process import nginx
from tests.server.web.test_floods import Watch
from tests.server.web.wire import JSON, head, read_answer
from tests.worker_process import PATIENCE_S, WorkerProcess, gated, serving_toy

pytestmark = pytest.mark.process

MIB = 2**20
PICTURE = "iVBORw0KGgo/+A=="
"""Some base64; a picture has it again and again."""

Fields = dict[str, Any]


def picture(n_bytes: int) -> str:
    return PICTURE * (n_bytes // len(PICTURE))


def messages(part: Fields, text: str = "look") -> Fields:
    """A conversation whose tool has answered with this block."""
    call = {"type": "tool_use", "id": "a", "name": "shot", "input": {"data": "of the model"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "here"}, part]}
    turns = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    return {"model": "toy", "max_tokens": 1, "messages": turns}


def responses(part: Fields, text: str = "look", kind: str = "function") -> Fields:
    """The same in OpenAI's form."""
    called = {"arguments": "{}"} if kind == "function" else {"input": "go"}
    call = {"type": f"{kind}_call", "call_id": "a", "name": "shot", **called}
    result = {"type": f"{kind}_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "here"}, part]}
    return {"model": "toy", "input": [{"role": "user", "content": text}, call, result], "store": False}


def source(data: str, kind: str = "image", media: str = "image/png") -> Fields:
    return {"type": kind, "source": {"type": "base64", "media_type": media, "data": data}}


def text_document(text: str) -> Fields:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}


MESSAGES, RESPONSES = "/v1/messages/count_tokens", "/v1/responses/input_tokens"
Made = Callable[[str], Fields]
REPLACED: dict[str, tuple[str, Made]] = {
    "image": (MESSAGES, lambda data: messages(source(data))),
    "PDF": (MESSAGES, lambda data: messages(source(data, "document", "application/pdf"))),
    "image in a list": (MESSAGES, lambda data: messages(source(data)) | {"system": [{"type": "text", "text": "a"}]}),
    "input_image": (
        RESPONSES,
        lambda data: responses({"type": "input_image", "image_url": f"data:image/png;base64,{data}"}),
    ),
    "input_file": (RESPONSES, lambda data: responses({"type": "input_file", "filename": "a.pdf", "file_data": data})),
    "custom": (RESPONSES, lambda data: responses({"type": "input_image", "image_url": data}, kind="custom_tool")),
}
IN_A_USERS_MESSAGE: dict[str, tuple[str, str, Made]] = {
    "messages": ("/v1/messages", "messages[0].content[1].type", source),
    "responses": ("/v1/responses", "input[0].content[1].type", lambda data: {"type": "input_image", "image_url": data}),
    "file": ("/v1/responses", "input[0].content[1].type", lambda data: {"type": "input_file", "file_data": data}),
    "chat": (
        "/v1/chat/completions",
        "messages[0].content[1].type",
        lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
    ),
    "sound": (
        "/v1/chat/completions",
        "messages[0].content[1].type",
        lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ),
}


def post(worker: WorkerProcess, path: str, body: bytes, *, is_chunked: bool = False) -> httpx2.Response:
    def pieces() -> Iterator[bytes]:
        for at in range(0, len(body), 100_001):
            yield body[at : at + 100_001]

    return worker.post(path, content=pieces() if is_chunked else body, headers={"content-type": JSON})


def seen(response: httpx2.Response) -> tuple[int, str, str | None]:
    return response.status_code, response.text, response.headers.get("x-ignored-fields")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize(
    "spell", [json.dumps, lambda value: json.dumps(value, sort_keys=True, indent=1)], ids=["", "sorted"]
)
@pytest.mark.parametrize("kind", REPLACED)
def test_a_large_picture_in_a_result_is_what_a_small_one_is(
    toy: WorkerProcess, kind: str, spell: Any, *, is_chunked: bool
) -> None:
    path, made = REPLACED[kind]
    small = seen(post(toy, path, spell(made(picture(100))).encode()))
    large = seen(post(toy, path, spell(made(picture(5 * MIB))).encode(), is_chunked=is_chunked))
    assert small == large
    assert small[0] == 200, small
    assert small[2] is not None


@pytest.mark.parametrize("kind", IN_A_USERS_MESSAGE)
@pytest.mark.parametrize("n_bytes", [100, 3 * MIB, 20 * MIB])
def test_a_picture_in_a_users_message_is_a_400_that_names_its_place(
    toy: WorkerProcess, kind: str, n_bytes: int
) -> None:
    path, place, part = IN_A_USERS_MESSAGE[kind]
    text = {"type": "input_text" if path == "/v1/responses" else "text", "text": "What is this?"}
    turns = [{"role": "user", "content": [text, part(picture(n_bytes))]}]
    fields = {"input": turns, "store": False} if path == "/v1/responses" else {"messages": turns, "max_tokens": 1}
    response = post(toy, path, json.dumps(fields).encode())
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{place} must be ")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_a_text_beside_pictures_is_read_whole(toy: WorkerProcess, *, is_chunked: bool) -> None:
    """A document of plain text has its text where pictures have their bytes, and what a model wrote may be anything."""

    def counted(*parts: Fields) -> int:
        body = messages(source(picture(100)))
        body["messages"][2]["content"][0]["content"] += parts
        body["messages"][1]["content"][0]["input"] = {"source": {"type": "base64", "data": "B" * 100_000}}
        response = post(toy, MESSAGES, json.dumps(body, sort_keys=True).encode(), is_chunked=is_chunked)
        assert response.status_code == 200, response.text
        n_tokens: int = response.json()["input_tokens"]
        return n_tokens

    text = text_document("A" * 50_000)
    pictures = [source(picture(3 * MIB)) for _ in range(3)]
    n_pictures = counted(*pictures) - counted()
    assert 0 < n_pictures < 1000
    assert counted(text) - counted() > 10_000
    assert counted(pictures[0], text, *pictures[1:]) == counted(text) + n_pictures


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, messages(source(picture(3 * MIB)), "x" * 3 * MIB)),
        (MESSAGES, messages(text_document("A" * 3 * MIB))),
        (RESPONSES, responses({"type": "input_text", "text": "A" * 3 * MIB})),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 3 * MIB}]}),
        ("/tokenize", {"prompt": "x" * 3 * MIB}),
    ],
)
def test_too_much_text_is_a_413_that_asks_for_less_of_it(
    toy: WorkerProcess, path: str, body: Fields, *, is_chunked: bool
) -> None:
    response = post(toy, path, json.dumps(body).encode(), is_chunked=is_chunked)
    assert response.status_code == 413
    message = response.json()["error"]["message"]
    assert message.startswith("the text of the request body exceeds 2,097,152 bytes: send a shorter prompt")
    assert "--max-prompt-chars" in message


narrow = serving_toy("--max-body-mb", "4")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("kind", REPLACED)
def test_too_many_pictures_are_a_413_that_names_the_setting(
    narrow: WorkerProcess, kind: str, *, is_chunked: bool
) -> None:
    path, made = REPLACED[kind]
    assert post(narrow, path, json.dumps(made(picture(3 * MIB))).encode(), is_chunked=is_chunked).status_code == 200
    response = post(narrow, path, json.dumps(made(picture(5 * MIB))).encode(), is_chunked=is_chunked)
    assert response.status_code == 413
    message = response.json()["error"]["message"]
    assert message.startswith("the request body exceeds 4,194,304 bytes: leave out older pictures and files")
    assert "--max-body-mb" in message


@pytest.mark.parametrize("path", ["/execute", "/cancel"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_the_pool_managers_routes_keep_their_limit(toy: WorkerProcess, path: str, *, is_chunked: bool) -> None:
    response = post(toy, path, json.dumps(messages(source(picture(3 * MIB)))).encode(), is_chunked=is_chunked)
    assert (response.status_code, response.text) == (413, "Failed to buffer the request body: length limit exceeded")


@pytest.mark.parametrize("wrong", [b"\n", b"\xff", b"\\x", b'"', b"\\ud800"])
def test_a_fault_in_or_behind_a_large_picture_is_found(toy: WorkerProcess, wrong: bytes) -> None:
    body = json.dumps(messages(source(picture(3 * MIB) + "*" + picture(MIB)))).encode()
    for broken in (body.replace(b"*", wrong), body[:-1], body + b"]"):
        response = post(toy, MESSAGES, broken)
        assert response.status_code == 400
        assert "JSON" in response.json()["error"]["message"]


# ── many at once ─────────────────────────────────────────────────────────────────────────────────

N_CLIENTS = 64


@pytest.mark.long
@pytest.mark.timeout(600)
def test_64_clients_of_60_mb_each_take_the_memory_that_all_bodies_share(toy: WorkerProcess) -> None:
    body = json.dumps(messages(source(picture(60_000_000)))).encode()
    request = head("POST", MESSAGES, content_type=JSON, content_length=len(body), connection="close")

    def send(_: int) -> int:
        with toy.connect() as sock:
            sock.sendall(request)
            sock.sendall(body)
            return read_answer(sock).status

    assert send(0) == 200
    with Watch(toy) as watch, ThreadPoolExecutor(N_CLIENTS) as pool:
        statuses = Counter(pool.map(send, range(N_CLIENTS)))
    assert set(statuses) <= {200, 503}, statuses
    assert statuses[200] >= 4
    assert watch.n_failed == 0
    assert watch.rss_most - watch.rss_before < 64e6


# ── nginx and a browser between ──────────────────────────────────────────────────────────────────

LIMIT = "client_max_body_size 64m;"

TOKEN = "a-token-for-tests"
guarded = serving_toy(environment={"LLORCH_API_TOKEN": TOKEN})
GIVEN = {"authorization": f"Bearer {TOKEN}", "content-type": JSON}


@contextmanager
def proxied(worker: WorkerProcess, folder: Path, more: str = "") -> Iterator[httpx2.Client]:
    """A client of an nginx before the worker."""
    server = f"server {{ listen PLAIN; {LIMIT} {more} location / {{ proxy_pass {worker.url}; }} }}"
    with (
        nginx(folder, server) as (port, _),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False) as client,
    ):
        yield client


def body_of(n_bytes: int) -> bytes:
    return json.dumps(messages(source(picture(n_bytes)))).encode()


def test_a_large_picture_passes_nginx_if_its_limit_is_raised(guarded: WorkerProcess, tmp_path: Path) -> None:
    with proxied(guarded, tmp_path) as client:
        small, large = (client.post(MESSAGES, content=body_of(n), headers=GIVEN) for n in (100, 60_000_000))
    assert small.status_code == large.status_code == 200
    assert small.json() == large.json()


@pytest.mark.parametrize("more", ["", "proxy_request_buffering off;", "proxy_http_version 1.1;"])
def test_nginx_gets_answers_that_come_before_the_body(guarded: WorkerProcess, tmp_path: Path, more: str) -> None:
    """Its connection to the worker is HTTP/1.0 and ends with the answer; a lost answer would be a 502."""
    with proxied(guarded, tmp_path, more) as client:
        for path, headers, status in (
            (MESSAGES, {"content-type": JSON}, 401),
            ("/execute", GIVEN, 413),
            ("/v1/nothing", GIVEN, 404),
            (MESSAGES, GIVEN | {"content-type": "text/plain"}, 415),
        ):
            answer = client.post(path, content=body_of(60_000_000), headers=headers)
            assert answer.status_code == status, (path, answer.text)
            assert answer.headers["x-correlation-id"]


ASK = """await (async () => {
  const asked = body => fetch(path, {method: 'POST', headers: {'content-type': 'application/json'}, body});
  const answer = await asked(before + 'iVBORw0KGgo/+A=='.repeat(n / 16) + behind);
  return {status: answer.status, body: await answer.json()};
})()"""


def test_a_page_sends_large_bodies_and_reads_early_answers(toy: WorkerProcess, tmp_path: Path) -> None:
    before, behind = json.dumps(messages(source("*"))).split("*")
    with Browser(chromium(), tmp_path) as browser, browser.tab() as tab:
        tab.call("Network.disable")  # it would tell each body
        tab.open(f"{toy.url}/")

        def ask(path: str, n: int) -> tuple[int, str]:
            told = tab.evaluate(ASK, path=path, n=n, before=before, behind=behind)
            return told["status"], json.dumps(told["body"])

        status, small = ask(MESSAGES, 160)
        assert status == 200
        assert ask(MESSAGES, 60_000_000) == (200, small)
        status, told = ask(MESSAGES, 70_000_000)
        assert status == 413
        assert "--max-body-mb" in told
        status, told = ask("/tokenize", 60_000_000)
        assert status == 413
        assert "the text of the request body exceeds" in told
        assert ask("/v1/nothing", 60_000_000)[0] == 404


# ── --max-prompt-chars ───────────────────────────────────────────────────────────────────────────

MAX_CHARS = 200_000


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Its engine never loads: a request without a fault is answered 503, which comes after all that is judged here."""
    folder = tmp_path_factory.mktemp("long")
    tiny = tiny_model().write(folder / "tiny.gguf")
    flags = ("--model", str(tiny), "--port", "0", "--max-prompt-chars", str(MAX_CHARS))
    with WorkerProcess(*flags, command=gated(folder)[1]) as worker:
        yield worker.listening()


def escaped(loading: WorkerProcess, n_characters: int) -> httpx2.Response:
    """Each character as long as JSON can make it: more than 2 MiB in all."""
    prompt = "\\ud83d\\ude00" * n_characters
    body = f'{{"job_id":"long","prompt":"{prompt}","max_tokens":1}}'
    return loading.post("/execute", content=body.encode(), headers={"content-type": "application/json"})


def test_a_prompt_of_the_limit_passes_where_every_character_is_escaped_and_no_longer_one(
    loading: WorkerProcess,
) -> None:
    answer = escaped(loading, MAX_CHARS)
    assert (answer.status_code, answer.json()["code"]) == (503, "WORKER_LOADING")
    answer = escaped(loading, MAX_CHARS + 1)
    assert answer.status_code == 400
    assert [error["constraint"] for error in answer.json()["errors"]] == [f"length(1..={MAX_CHARS})"]


# ── bodies that are small to send and large, deep or odd to read, at every route that reads one ──

MOST_BYTES = 2_000_000
MOMENT_S = 10.0
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
            assert time.monotonic() - began_s < MOMENT_S, said
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
