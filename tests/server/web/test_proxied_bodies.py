"""Large bodies, and answers that come before them, through nginx and from a browser, over real sockets."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from client.child import end, free_port
from tests.chromium import Browser, chromium
from tests.server.web.test_large_bodies import MESSAGES, MIB, messages, picture, source
from tests.server.web.wire import JSON
from tests.worker_process import PATIENCE_S, WorkerProcess, eventually, serving_toy

pytestmark = pytest.mark.process

CONF = """
daemon off; pid {folder}/pid; error_log {folder}/errors; user root;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/answers;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; {limit} location / {{ proxy_pass {worker}; }} }}
}}
"""
"""nginx's defaults, but for the paths of its files."""
LIMIT = "client_max_body_size 64m;"

TOKEN = "a-token-for-tests"
guarded = serving_toy(environment={"LLORCH_API_TOKEN": TOKEN})
GIVEN = {"authorization": f"Bearer {TOKEN}", "content-type": JSON}


@contextmanager
def proxied(worker: WorkerProcess, folder: Path, limit: str = LIMIT) -> Iterator[httpx2.Client]:
    """A client of an nginx before the worker."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("there is no nginx, which Debian's package has")
    port = free_port()
    (folder / "conf").write_text(CONF.format(folder=folder, port=port, worker=worker.url, limit=limit))
    process = subprocess.Popen([program, "-p", folder, "-e", folder / "errors", "-c", folder / "conf"])
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False) as client:
        try:
            eventually(lambda: is_up(client))
            yield client
        finally:
            end(process)


def is_up(client: httpx2.Client) -> bool:
    try:
        return client.get("/livez").is_success
    except httpx2.TransportError:
        return False


def body_of(n_bytes: int) -> bytes:
    return json.dumps(messages(source(picture(n_bytes)))).encode()


def test_a_large_picture_passes_nginx_if_its_limit_is_raised(guarded: WorkerProcess, tmp_path: Path) -> None:
    with proxied(guarded, tmp_path) as client:
        small, large = (client.post(MESSAGES, content=body_of(n), headers=GIVEN) for n in (100, 60_000_000))
    assert small.status_code == large.status_code == 200
    assert small.json() == large.json()


def test_nginx_refuses_a_body_of_more_than_a_mebibyte_by_default(guarded: WorkerProcess, tmp_path: Path) -> None:
    """This is why the documentation names its setting."""
    with proxied(guarded, tmp_path, limit="") as client:
        answer = client.post(MESSAGES, content=body_of(2 * MIB), headers=GIVEN)
    assert answer.status_code == 413
    assert "nginx" in answer.text


@pytest.mark.parametrize("more", ["", "proxy_request_buffering off;", "proxy_http_version 1.1;"])
def test_nginx_gets_answers_that_come_before_the_body(guarded: WorkerProcess, tmp_path: Path, more: str) -> None:
    """Its connection to the worker is HTTP/1.0 and ends with the answer; a lost answer would be a 502."""
    with proxied(guarded, tmp_path, LIMIT + more) as client:
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
