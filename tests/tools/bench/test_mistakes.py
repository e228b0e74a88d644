"""A mistake in the arguments of any `bench` command is answered with one line."""

import pytest

from tools.bench.__main__ import run

AT_A_URL = ("load", "--url", "http://127.0.0.1:1")
PULL = "llorch-worker models pull smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [
        (["load"], 1, PULL),
        (["load", "--model", "no-such-model"], 1, "no-such-model"),
        ([*AT_A_URL], 1, "no server answers at http://127.0.0.1:1"),
        (["load", "--url", "127.0.0.1:1"], 2, "http://HOST:PORT"),
        ([*AT_A_URL, "--scenario", "1-stream-no-drafts"], 2, "--scenario 1-stream-no-drafts needs a worker of its own"),
        ([*AT_A_URL, "--peer", "llama-server"], 2, "give it as NAME=URL"),
        ([*AT_A_URL, "--peer", "llorch-worker=http://a:1"], 2, "two sides are called llorch-worker"),
        ([*AT_A_URL, "--worker-flags", "--threads 1"], 2, "--worker-flags"),
        ([*AT_A_URL, "--peer-binary", "/no/such/file"], 2, "/no/such/file"),
        (["load", "--scenario", "no-such"], 2, "no-such"),
        (["load", "--worker-flags", "'"], 2, "--worker-flags"),
        (["load", "--rounds", "0"], 2, "--rounds"),
        (["sampling", "--model", "smollm2-135m-instruct"], 1, PULL),
        (["sampling", "--rounds", "0"], 2, "1<=x<=1000"),
        (["steps", "--model", "missing.gguf"], 1, "missing.gguf"),
    ],
)
@pytest.mark.usefixtures("no_models")
def test_a_mistake_is_one_line(argv: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == code
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
