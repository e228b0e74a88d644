"""Every route of the document, with every method and every kind of token: one law for all of them."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.worker_process import WorkerProcess, serving_toy
from worker.server.web.middleware import OPEN_PATHS
from worker.server.web.pages import BROWSED_PATHS, PAGE_PATHS

pytestmark = pytest.mark.process

TOKEN = "correct-horse-battery-staple"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
RIGHT = {"authorization": f"Bearer {TOKEN}"}
TOKENS: dict[str, dict[str, str]] = {
    "none": {},
    "a wrong one": {"authorization": f"Bearer {TOKEN[::-1]}"},
    "a wrong key": {"x-api-key": TOKEN[::-1]},
    "the right one": RIGHT,
}
SHUTDOWNS = ("/shutdown", "/v1/shutdown", "/v1/admin/shutdown")
"""They would end the worker of the others (test_other_pages.py has them)."""

guarded = serving_toy(environment={"LLORCH_API_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def visitor(guarded: WorkerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as client:
        yield client


@pytest.fixture(scope="module")
def routes(visitor: httpx2.Client) -> dict[str, set[str]]:
    """The methods of each path, HEAD among them."""
    document = visitor.get("/openapi/openapi.json", headers=RIGHT).json()
    found = {path: {name.upper() for name in operations} & {*METHODS} for path, operations in document["paths"].items()}
    return {path: methods | ({"HEAD"} if "GET" in methods else set()) for path, methods in found.items()}


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("method", METHODS)
def test_a_request_is_allowed_then_routed_then_read(
    guarded: WorkerProcess, visitor: httpx2.Client, routes: dict[str, set[str]], method: str, token: str
) -> None:
    """All that is not open is a 401 without the token, whatever the method. With it, a method that the route lacks is
    a 405 that names those it has. Only then a body is looked at, and a body that says nothing is no server error."""
    assert len(routes) > 25
    for template, methods in routes.items():
        path = template.replace("{", "").replace("}", "")
        if path in SHUTDOWNS and method in methods:
            continue
        answer = visitor.request(method, path, headers=TOKENS[token], content=b"{}" if method == "POST" else b"")
        said = (method, path, answer.status_code)
        if method in ("CONNECT", "BREW"):
            assert answer.status_code in {400, 401, 405}, said
        elif token != "the right one" and path not in OPEN_PATHS | PAGE_PATHS:
            assert answer.status_code == 401, said
            assert answer.headers.get_list("www-authenticate")[0] == "Bearer"
            assert (len(answer.headers.get_list("www-authenticate")) == 2) == (path in BROWSED_PATHS)
        elif method not in methods:
            assert answer.status_code == 405, said
            assert set(answer.headers["allow"].split(",")) == methods
        else:
            assert answer.status_code < 500, said
            assert answer.status_code not in {401, 405}, said
    assert guarded.process.poll() is None


def test_get_and_head_are_answered_alike(visitor: httpx2.Client, routes: dict[str, set[str]]) -> None:
    read = {path for path, methods in routes.items() if "GET" in methods and "{" not in path}
    for path in read | PAGE_PATHS | BROWSED_PATHS:
        got, headed = visitor.get(path, headers=RIGHT), visitor.head(path, headers=RIGHT)
        assert (got.status_code, headed.status_code, headed.content) == (200, 200, b""), path
        assert got.headers["content-type"] == headed.headers["content-type"]
        assert int(got.headers["content-length"]) == len(got.content)
        assert int(headed.headers["content-length"]) > 0 or not got.content


def test_an_unknown_path_is_a_404_with_the_list_of_routes(visitor: httpx2.Client, routes: dict[str, set[str]]) -> None:
    """TV-075."""
    answer = visitor.get("/nope", headers=RIGHT)
    listed = {tuple(line.split()[:2]) for line in answer.text.splitlines()[1:]}
    assert {(method, path) for path, methods in routes.items() for method in methods - {"HEAD"}} == listed
