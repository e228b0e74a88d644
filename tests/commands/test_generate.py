"""`llorch-worker generate`: one prompt, answered in the terminal by a real engine process."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gguf_files import tiny_model
from tests.worker_process import PATIENCE_S, eventually, own_environment
from worker.cli import run

pytestmark = pytest.mark.process

FRANCE = "The capital of France is"
STORY = "Once upon a time, in a small village by the sea, there lived"
GREEDY = ("--temperature", "0")
COMMAND = (sys.executable, "-m", "worker", "generate")


def generate(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [*COMMAND, *arguments], env=own_environment(), input=stdin, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def answer(*arguments: str) -> str:
    """Return what a successful run wrote to stdout."""
    result = generate(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def complaint(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line a failed run wrote, and it wrote nothing else."""
    assert result.returncode == code, result.stderr
    return the_line(result.stdout, result.stderr)


def the_line(stdout: str, stderr: str) -> str:
    assert stdout == ""
    assert stderr.startswith("llorch-worker: error: ")
    assert stderr.count("\n") == 1
    return stderr


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_the_text_goes_to_stdout_and_a_summary_to_stderr(default_model: Path) -> None:
    """The catalogue's default answers without --model, with the same greedy text."""
    greedy = (FRANCE, "--max-tokens", "8", *GREEDY)
    result = generate(*greedy, "--model", str(default_model))
    assert (result.returncode, result.stdout[:7]) == (0, " Paris."), result.stderr
    assert re.fullmatch(r"\n\[8 tokens, [\d.]+ tokens/s, seed \d+\]\n", result.stderr)
    assert answer(*greedy) == result.stdout
    assert answer(*greedy, "--stop", "Paris", "--stop", "London") == " "


@pytest.mark.model
def test_the_seed_of_the_summary_gives_the_same_text_again(shallow_model: Path) -> None:
    drawn = (STORY, "--model", str(shallow_model), "--max-tokens", "12", "--temperature", "1")
    first = generate(*drawn)
    match = re.search(r"seed (\d+)", first.stderr)
    assert match is not None, first.stderr
    assert answer(*drawn, "--seed", match[1]) == first.stdout
    assert answer(*drawn, "--seed", str((int(match[1]) + 1) % 2**64)) != first.stdout


@pytest.mark.model
def test_a_prompt_may_come_from_stdin_or_of_the_models_template(shallow_model: Path) -> None:
    """All three give the same tokens."""
    flags = ("--model", str(shallow_model), "--max-tokens", "12", *GREEDY)
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    piped = generate("-", *flags, stdin=prompt.encode())
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == answer(prompt, *flags) == answer("Hi", "--chat", "--system", "Be brief.", *flags)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_a_prompt_beyond_the_context_is_one_line_with_both_numbers(default_model: Path) -> None:
    line = complaint(generate("word " * 100, "--model", str(default_model), "--ctx-size", "32"), 1)
    assert re.search(r"101 tokens.*32", line)


BAD_FLAGS = [json.loads(line) for line in (Path(__file__).parent / "bad_flags.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "case", [*BAD_FLAGS, {"command": ["chat"], "flags": ["--system", "x" * 40_000], "said": "32768"}]
)
def test_a_bad_flag_is_one_line_and_exit_2(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi"))
    assert run([*case["command"], *case["flags"]]) == 2
    assert case["said"] in the_line(*capsys.readouterr())


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"", "prompt must not be empty"),
        (b"caf\xe9", "byte 3 is not a character"),
        ("世界".encode()[:-1], "byte 3 is not a character"),
        ("世".encode() * 40_000, "prompt must be at most 32768 characters"),
    ],
)
def test_a_bad_prompt_on_stdin_is_one_line_and_exit_2(stdin: bytes, said: str) -> None:
    assert said in complaint(generate("-", stdin=stdin), 2)


def test_a_prompt_is_required() -> None:
    assert "PROMPT" in complaint(generate(), 2)


def test_a_model_that_cannot_be_used_is_one_line_and_exit_1(tmp_path: Path) -> None:
    """The last one is refused by llama.cpp alone."""
    absent, broken, odd = (tmp_path / f"{name}.gguf" for name in ("absent", "broken", "odd"))
    broken.write_bytes(tiny_model().to_bytes()[:-1])
    tiny_model().write(odd)
    for path, said in ((absent, str(absent)), (broken, str(broken)), (odd, "key not found in model")):
        assert said in complaint(generate("Hi", "--model", str(path)), 1)


FAILING_WATCHDOG = """
import sys
from worker.server.front import client
from worker.__main__ import main

def fail(_):
    raise ZeroDivisionError("on purpose")

client.Watchdog.tick = fail
main()
"""


@pytest.mark.model
def test_a_part_that_fails_while_the_answer_comes_is_one_line_and_exit_1(model_path: Path) -> None:
    """The part is the watchdog: without it the answer of an engine that hangs would be waited for without end."""
    command = (sys.executable, "-c", FAILING_WATCHDOG, "generate", STORY, "--model", str(model_path))
    result = subprocess.run(
        [*command, "--max-tokens", "2048", *GREEDY],
        env=own_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    line = "llorch-worker: error: the engine's watchdog failed: ZeroDivisionError: on purpose\n"
    assert (result.returncode, result.stderr) == (1, line)


# ── interruptions ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def endless(model: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of far more tokens than any test waits for; afterwards its engine is gone."""
    flags = ["--model", str(model), "--max-tokens", "2048", *GREEDY]
    with subprocess.Popen(
        [*COMMAND, STORY, *flags], env=own_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        eventually(lambda: engines_of(process))
        (engine,) = engines_of(process)
        try:
            yield process
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    eventually(lambda: not engine.is_running())


def engines_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "worker.server.process.main" in child.cmdline()]


def read_first_text(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.read(1) == b" "


def stderr_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stderr is not None
    return process.stderr.read()


@pytest.mark.model
@pytest.mark.usefixtures("_ctrl_c_is_heard")
@pytest.mark.parametrize(
    ("number", "code", "is_loading"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGINT, 130, True)],
)
def test_a_signal_ends_the_answer_or_the_load_and_leaves_no_engine(
    number: signal.Signals, code: int, model_path: Path, *, is_loading: bool
) -> None:
    with endless(model_path) as process:
        if not is_loading:
            read_first_text(process)
        process.send_signal(number)
        assert stderr_of(process) == b""
    assert process.returncode == code


@pytest.mark.model
def test_a_reader_that_leaves_early_ends_the_answer_and_leaves_no_engine(model_path: Path) -> None:
    with endless(model_path) as process:
        read_first_text(process)
        assert process.stdout is not None
        process.stdout.close()
        assert stderr_of(process) == b""
    assert process.returncode == 141
