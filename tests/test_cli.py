"""The command line as a user meets it: help, one line for every mistake, exit codes, and signals before the rest."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker import __version__
from worker.cli import parse, read_settings, run, setting_options
from worker.legacy_flags import BACKENDS, DEVICE_NUMBERS, IGNORED_SWITCHES, IGNORED_VALUES
from worker.settings import flag_name, knobs

MODEL = ["--model", "m.gguf"]
COMMANDS = ["serve", "generate", "models", "inspect", "devices", "bench"]


COLOURS = {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"}


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what changes the worker's settings or the look of its help."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LLORCH_") and key not in COLOURS}
    return kept | {"COLUMNS": "80"} | dict(changes)


def llorch_worker(*argv: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worker", *argv],
        env=environment(environ or {}),
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
    for name, _, _ in knobs():
        assert f" {flag_name(name)} " in shown
    for name in (*DEVICE_NUMBERS, *IGNORED_VALUES, *IGNORED_SWITCHES, "backend"):
        assert f" {flag_name(name)} " not in shown
    for part in ("--config", "LLORCH_API_TOKEN", "LLORCH_CONFIG", "Exit codes", "0..65535", "default 8080", "curl -N"):
        assert part in shown


@pytest.mark.process
def test_the_top_level_help_lists_the_commands_and_says_that_flags_mean_serve() -> None:
    shown = llorch_worker("--help").stdout
    for part in (*COMMANDS, "Flags without a command mean `serve`", "llorch-worker --model smollm2-135m-instruct"):
        assert part in shown


@pytest.mark.process
def test_help_imports_neither_server_nor_llama() -> None:
    program = (
        "import sys; from worker.cli import run; code = run(['--help']);"
        "assert not {'llama_cpp', 'litestar', 'uvicorn', 'huggingface_hub', 'numpy'} & set(sys.modules);"
        "sys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"llorch-worker {command}" in shown
    assert ("Exit codes" in shown) == (command == "serve")


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


def test_a_default_model_stands_in_only_where_none_is_given() -> None:
    def of_catalog(catalog: Path | None) -> str:
        return f"default of {catalog}"

    assert read_settings({"catalog": "c.toml"}, {}, of_catalog).model == "default of c.toml"
    assert read_settings({}, {"LLORCH_MODEL": "mine"}, of_catalog).model == "mine"


def test_options_can_be_had_by_group() -> None:
    names = {option.name for option in setting_options("Model", "Jobs")}
    assert names == {name for name, _, knob in knobs() if knob.group in {"Model", "Jobs"}} | {"config"}


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────

MISTAKES: list[tuple[list[str], dict[str, str], str]] = [
    ([], {}, "no model: give --model"),
    (["serve"], {}, "no model: give --model"),
    (["--no-such-flag"], {}, "--no-such-flag"),
    ([*MODEL, "--prot", "1"], {}, "--port"),
    (["-x"], {}, "-x"),
    (["frobnicate"], {}, "frobnicate"),
    (["servr", *MODEL], {}, "serve"),
    ([*MODEL, "leftover"], {}, "leftover"),
    ([*MODEL, "serve"], {}, "serve"),
    (["--model"], {}, "--model"),
    (["--model", "--port", "0"], {}, "--port"),
    ([*MODEL, "--port", "65536"], {}, "0..65535"),
    ([*MODEL, "--port", "http"], {}, "--port"),
    ([*MODEL, "--flash-attn", "maybe"], {}, "auto, on, off"),
    ([*MODEL, "--sse-event-names=yes"], {}, "--sse-event-names"),
    ([*MODEL, "--worker-id", "a\nb"], {}, "--worker-id"),
    ([*MODEL, "--gpu-device", "-1"], {}, "0..999"),
    ([*MODEL, "--backend", "rocm"], {}, "accelerate"),
    ([*MODEL, "--local-mode=1"], {}, "--local-mode"),
    ([*MODEL, "--config", "/nowhere.toml"], {}, "/nowhere.toml"),
    ([*MODEL, "--api-key", ""], {}, "API token is empty"),
    (MODEL, {"LLORCH_API_TOKEN": ""}, "API token is empty"),
    (MODEL, {"LLORCH_MAX_QUEUE": "many"}, "LLORCH_MAX_QUEUE"),
    (["models"], {}, "--help"),
    (["models", "frobnicate"], {}, "frobnicate"),
    (["inspect"], {}, "FILE"),
    (["devices", "--jason"], {}, "--json"),
]


@pytest.mark.parametrize(("argv", "environ", "wording"), MISTAKES)
def test_a_wrong_usage_is_one_line_and_exit_2(
    argv: Sequence[str],
    environ: Mapping[str, str],
    wording: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in set(os.environ) - set(environment({})):
        monkeypatch.delenv(key)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llorch-worker: error: ")
    assert wording in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()


@pytest.mark.process
@pytest.mark.parametrize(
    ("argv", "environ", "code"),
    [
        (["--help"], {}, 0),
        (["--version"], {}, 0),
        ([], {}, 2),
        (["--no-such-flag"], {}, 2),
        ([*MODEL, "--port", "65536"], {}, 2),
        (MODEL, {"LLORCH_API_TOKEN": ""}, 2),
        (["models"], {}, 2),
        (["inspect", "/nowhere/m.gguf"], {}, 1),
    ],
)
def test_the_process_leaves_with_the_documented_code_and_no_traceback(
    argv: list[str], environ: Mapping[str, str], code: int
) -> None:
    ended = llorch_worker(*argv, environ=environ)
    assert ended.returncode == code
    assert ended.stderr.count("\n") == (1 if code else 0)
    assert bool(ended.stdout) == (code == 0)


@pytest.mark.process
def test_arguments_that_are_not_utf_8_are_one_line_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "worker", "--model", b"\xff\xfe.gguf"],
        env=environment({}),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.process
def test_a_reader_that_leaves_early_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed_pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "worker", "serve", "--help"],
            env=environment({}),
            stdout=closed_pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 141
    assert ended.stderr == b""


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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [["serve"], []])
def test_a_signal_while_serve_reads_its_settings_is_a_quiet_exit_0(
    command: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    fifo = tmp_path / "config.toml"
    with reading_a_fifo(fifo, *command, "--config", str(fifo)) as process:
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.communicate() == (b"", b"")


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_another_command_with_the_conventional_code(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    fifo = tmp_path / "models.toml"
    with reading_a_fifo(fifo, "models", "list", "--catalog", str(fifo)) as process:
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.communicate() == (b"", b"")
