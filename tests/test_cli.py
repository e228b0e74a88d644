"""The command line as a user meets it: help, one line for every mistake, exit codes, and signals before the rest."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rich_click as click

from parity.command import parity
from tests.config.given import parse
from tests.gguf_files import tiny_model
from tests.worker_process import ended_by
from worker import __version__
from worker.argv import means_serve
from worker.cli import run, setting_options
from worker.commands.models import models
from worker.config.option import flag_name
from worker.config.settings import options
from worker.config.spellings import BACKENDS, DEVICE_NUMBERS, IGNORED_SWITCHES, IGNORED_VALUES

MODEL = ["--model", "m.gguf"]
COMMANDS = ["serve", "generate", "chat", "models", "inspect", "launch", "devices"]
COMMANDS_ALL = [*COMMANDS, "parity"]
GROUPS: dict[str, click.Command] = {"models": models, "parity": parity}


COLOURS = {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"}


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what changes the worker's settings or the look of its help."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LLORCH_") and key not in COLOURS}
    return kept | {"COLUMNS": "80"} | dict(changes)


def llorch_worker(*argv: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "worker", *argv)


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        env=environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ── help ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_serve_help_explains_every_setting_and_hides_the_legacy_spellings() -> None:
    shown = llorch_worker("serve", "--help").stdout
    for option in options():
        assert f" {option.opts[0]} " in shown
    for name in (*DEVICE_NUMBERS, *IGNORED_VALUES, *IGNORED_SWITCHES, "backend"):
        assert f" {flag_name(name)} " not in shown
    for part in ("--config", "LLORCH_API_TOKEN", "LLORCH_CONFIG", "Exit codes", "0<=x<=65535", "default: 8080", "curl"):
        assert part in shown


@pytest.mark.process
def test_the_help_lists_the_commands_and_imports_neither_server_nor_llama() -> None:
    program = (
        "import sys; from worker.cli import run; code = run(['--help']);"
        "assert not {'llama_cpp', 'litestar', 'uvicorn', 'huggingface_hub', 'numpy'} & set(sys.modules);"
        "sys.exit(code)"
    )
    found = python("-c", program)
    assert found.returncode == 0
    for part in (*COMMANDS, "Flags without a command mean `serve`", "llorch-worker --model smollm2-135m-instruct"):
        assert part in found.stdout


def test_every_command_and_those_below_have_help_also_by_h(capsys: pytest.CaptureFixture[str]) -> None:
    for words in every_command():
        assert run([*words, "-h"]) == 0, words
        short = capsys.readouterr().out
        assert run([*words, "--help"]) == 0
        assert capsys.readouterr().out == short
        assert "-h" in short
        assert " ".join(["llorch-worker", *words]) in short
        if words in [[name] for name in COMMANDS]:
            assert ("Exit codes" in short) == (words == ["serve"])


def every_command() -> Iterator[list[str]]:
    """The words of each command and subcommand, the program itself first."""
    yield []
    for name in COMMANDS_ALL:
        yield [name]
        command = GROUPS.get(name)
        if isinstance(command, click.Group):
            yield from ([name, below] for below in command.commands)


@pytest.mark.process
@pytest.mark.parametrize(
    ("missing", "says"),
    [("parity", "is not installed"), ("gguf", "needs gguf"), ("safetensors", "needs safetensors")],
)
def test_the_command_of_another_package_says_what_to_install(missing: str, says: str) -> None:
    program = "import sys; sys.modules[{!r}] = None; from worker.cli import run; sys.exit(run(['parity', 'bounds']))"
    found = python("-c", program.format(missing))
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"llorch-worker: error: parity {says}: pip install -e '.[parity]' in a checkout\n"


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"llorch-worker {__version__}\n"


# ── flags ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flag", [flag_name(name) for name in (*IGNORED_VALUES, *IGNORED_SWITCHES)])
def test_flags_without_meaning_are_accepted(flag: str) -> None:
    value = [] if flag == "--local-mode" else ["anything"]
    assert parse([*MODEL, flag, *value], {}).model == "m.gguf"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_lines_of_known_callers_are_understood(backend: str) -> None:
    found = parse(
        [
            *("--worker-id", "worker-1f0c", "--model", "/m.gguf", "--model-ref", "hf:a/b", "--backend", backend),
            *("--device", "0", "--port", "8081", "--callback-url", "http://127.0.0.1:9200/v1/workers/ready"),
        ],
        {},
    )
    assert found.device == {"cuda": "cuda:0", "metal": "metal"}.get(backend, "cpu")
    assert found.reported_model_ref == "hf:a/b"


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert parse([*MODEL, "--port", "1", "--port", "2"], {}).port == 2


@pytest.mark.parametrize("argv", [["./x.gguf"], ["x.GGUF", "--port", "0"], ["--port", "0", "/a/x.gguf"]])
def test_a_bare_model_file_is_the_model(argv: list[str]) -> None:
    (bare,) = (argument for argument in argv if argument.lower().endswith(".gguf"))
    assert parse(argv, {"LLORCH_MODEL": "other"}).model == bare


@pytest.mark.parametrize("line", ["", "serve", "--model x", "dir/x.gguf --port 0", "-m"])
def test_what_is_no_command_means_serve(line: str) -> None:
    assert means_serve(line.split())


@pytest.mark.parametrize("line", ["-h", "--help", "--version", "generate x.gguf", "models", "x.bin"])
def test_a_command_does_not(line: str) -> None:
    assert not means_serve(line.split())


def test_a_default_model_stands_in_only_where_none_is_given() -> None:
    def of_catalog(catalog: Path | None) -> str:
        return f"default of {catalog}"

    assert parse(["--catalog", "c.toml"], {}, of_catalog).model == "default of c.toml"
    assert parse([], {"LLORCH_MODEL": "mine"}, of_catalog).model == "mine"


def test_options_can_be_had_by_group() -> None:
    names = {option.name for option in setting_options("Model", "Jobs") if not option.hidden}
    assert names == {option.name for option in options() if option.panel in {"Model", "Jobs"}} | {
        "config",
        "hf_repo",
    }
    assert not {option.name for option in setting_options("Jobs") if not option.hidden} & {"model", "hf_repo"}


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────

MISTAKES = [json.loads(line) for line in Path(__file__).with_name("mistakes.jsonl").read_text().splitlines()]
"""Wrong uses: `argv`, `environ` where a variable is wrong, and what the one line `says`."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["says"])
def test_a_wrong_usage_is_one_line_and_exit_2(
    mistake: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in set(os.environ) - set(environment({})):
        monkeypatch.delenv(key)
    for key, value in mistake.get("environ", {}).items():
        monkeypatch.setenv(key, value)
    assert run(mistake["argv"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llorch-worker: error: ")
    assert mistake["says"] in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()


@pytest.mark.process
@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--version"], 0), (["--no-such-flag"], 2), (["--model", b"\xff.gguf"], 2), (["inspect", "/nowhere/m.gguf"], 1)],
)
def test_the_process_leaves_with_the_documented_code_and_no_traceback(argv: list[str], code: int) -> None:
    ended = llorch_worker(*argv)
    assert ended.returncode == code
    assert ended.stderr.count("\n") == (1 if code else 0)
    assert bool(ended.stdout) == (code == 0)


def limited(limit: int, most: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """A worker under a limit of its own (RLIMIT_…), hard and soft."""
    program = (
        f"import os, resource, sys; resource.setrlimit({limit}, ({most},) * 2); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return python("-c", program, sys.executable, "-m", "worker", *argv, "--log-format", "json")


@pytest.mark.process
@pytest.mark.parametrize("most", [8, 16, 63])
def test_too_few_open_files_are_one_error_line_and_exit_1(most: int, tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "tiny.gguf")
    ended = limited(resource.RLIMIT_NOFILE, most, "--model", str(path), "--port", "0")
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ended.returncode, ended.stdout) == (1, "")
    assert [event["event"] for event in events] == ["startup", "error", "shutdown"]
    assert f"the limit on open files is {most}" in events[1]["message"]


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not limit the address space")
@pytest.mark.parametrize("mebibytes", [24, 48])
def test_a_small_address_space_is_one_line_and_exit_1(mebibytes: int) -> None:
    """Python itself starts in less; its modules do not."""
    ended = limited(resource.RLIMIT_AS, mebibytes * 2**20, *MODEL)
    assert (ended.returncode, ended.stdout) == (1, "")
    errors = [line for line in ended.stderr.splitlines() if "error" in line]
    assert len(errors) == 1, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.process
def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "worker", "serve", "--help"]
    with os.fdopen(write_end, "wb") as closed_pipe:
        ended = subprocess.run(
            command, env=environment({}), stdout=closed_pipe, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (141, b"")


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def reading_a_fifo(fifo: Path, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that has opened `fifo` as its configuration, and waits for a first byte that never comes."""
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "worker", *argv],
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        with fifo.open("wb"):
            yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("argv", "number", "code"),
    [
        (["serve", "--config"], signal.SIGTERM, 0),
        (["--config"], signal.SIGINT, 0),
        (["models", "list", "--catalog"], signal.SIGTERM, 143),
        (["models", "list", "--catalog"], signal.SIGINT, 130),
    ],
)
def test_a_signal_is_a_quiet_end_of_serve_and_the_conventional_code_of_another_command(
    argv: list[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    fifo = tmp_path / "file.toml"
    with reading_a_fifo(fifo, *argv, str(fifo)) as process:
        assert ended_by(partial(process.send_signal, number), process) == code
        assert process.communicate() == (b"", b"")
