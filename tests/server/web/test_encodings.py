"""Bodies that are compressed, or are no UTF-8: each refusal says what is wrong."""

import gzip
import json

import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS, refusal
from tests.server.web.wire import JSON
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.process

BODIES: dict[str, dict[str, object]] = {
    "/execute": {"job_id": "j", "prompt": "abc", "max_tokens": 2},
    "/cancel": {"job_id": "nobody"},
    "/tokenize": {"prompt": "abc"},
    COMPLETIONS: {"prompt": "abc", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2},
}
"""Routes that read a body, with one that they take."""

OPENAIS = {"/tokenize", COMPLETIONS, CHAT}


def posted(worker: WorkerProcess, path: str, content: bytes, *codings: str) -> tuple[int, str, dict[str, str]]:
    """The status, the words and the headers of the answer."""
    headers = [("content-type", JSON), *(("content-encoding", coding) for coding in codings)]
    with worker.client() as client:
        answer = client.post(path, content=content, headers=headers)
    is_refusal = answer.status_code >= 400 and path in OPENAIS
    words = refusal(answer)["message"] if is_refusal else answer.text
    return answer.status_code, words, dict(answer.headers)


@pytest.mark.parametrize(
    "codings", [("gzip",), ("br",), ("zstd",), ("identity, x-gzip",), ("identity", "GZIP"), ("?",)]
)
@pytest.mark.parametrize("path", BODIES)
def test_a_compressed_body_is_refused_with_415_and_its_encoding(
    toy: WorkerProcess, path: str, codings: tuple[str, ...]
) -> None:
    status, words, headers = posted(toy, path, gzip.compress(json.dumps(BODIES[path]).encode()), *codings)
    coding = codings[-1].removeprefix("identity, ")
    assert (status, headers["accept-encoding"]) == (415, "identity")
    assert words == f"Content-Encoding '{coding}' is not supported: send the body unencoded"


@pytest.mark.parametrize("codings", [("identity",), ("",), ("Identity, identity",), ("identity", "")])
@pytest.mark.parametrize("path", BODIES)
def test_a_body_with_the_encoding_identity_is_read(toy: WorkerProcess, path: str, codings: tuple[str, ...]) -> None:
    assert posted(toy, path, json.dumps(BODIES[path]).encode(), *codings)[0] in {200, 202}


@pytest.mark.parametrize("path", BODIES)
def test_a_byte_order_mark_is_skipped_and_other_faults_are_named(toy: WorkerProcess, path: str) -> None:
    text = json.dumps(BODIES[path])
    half = text[:-1] + ',"x":"\\ud83d"}'
    assert posted(toy, path, text.encode("utf-8-sig"))[0] in {200, 202}
    for content, said in (
        (text.encode("utf-16"), "it is in UTF-16 or UTF-32; send it in UTF-8"),
        (half.encode(), f"half of a surrogate pair stands alone at byte {half.index(chr(92))}"),
        (text[:-1].encode() + b',"x":"\xff"}', "it is not UTF-8"),
    ):
        status, words, _ = posted(toy, path, content)
        assert status == 400
        assert said in words
