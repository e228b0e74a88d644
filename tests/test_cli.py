"""The command line as a user meets it: help, one line for every mistake, exit codes, and signals before the rest."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

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


def llorch_worker(*argv: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return python("-m", "worker", *argv, environ=environ)


def python(*argv: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
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
    for option in options():
        assert f" {option.opts[0]} " in shown
    for name in (*DEVICE_NUMBERS, *IGNORED_VALUES, *IGNORED_SWITCHES, "backend"):
        assert f" {flag_name(name)} " not in shown
    for part in ("--config", "LLORCH_API_TOKEN", "LLORCH_CONFIG", "Exit codes", "0<=x<=65535", "default: 8080", "curl"):
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
def test_the_command_of_another_package_says_what_to_install_when_it_is_not_there() -> None:
    program = (
        "import sys; sys.modules['parity'] = None; from worker.cli import run; sys.exit(run(['parity', 'bounds']))"
    )
    found = python("-c", program)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "llorch-worker: error: parity is not installed: pip install -e '.[parity]' in a checkout\n"


@pytest.mark.process
@pytest.mark.parametrize("package", ["gguf", "safetensors"])
def test_the_command_of_another_package_names_the_library_that_is_missing(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from worker.cli import run; sys.exit(run(['parity', 'bounds']))"
    )
    found = python("-c", program)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == (f"llorch-worker: error: parity needs {package}: pip install -e '.[parity]' in a checkout\n")


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


@pytest.mark.parametrize(
    ("argv", "is_serve"),
    [
        ([], True),
        (["serve"], True),
        (["--model", "x"], True),
        (["dir/x.gguf", "--port", "0"], True),
        (["-m"], True),
        (["-h"], False),
        (["--help"], False),
        (["--version"], False),
        (["generate", "x.gguf"], False),
        (["models"], False),
        (["x.bin"], False),
    ],
)
def test_what_is_no_command_means_serve(argv: list[str], is_serve: bool) -> None:
    assert means_serve(argv) is is_serve


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

MISTAKES: list[tuple[list[str], dict[str, str], str]] = [
    ([], {}, "no model: give --model"),
    (["--no-such-flag"], {}, "--no-such-flag"),
    ([*MODEL, "--prot", "1"], {}, "--port"),
    ([*MODEL, "--hive-ur", "x"], {}, "no such option: --hive-ur\n"),
    ([*MODEL, "--backen", "cpu"], {}, "--backen"),
    ([*MODEL, "-tb", "4"], {}, "no such option: -tb; did you mean --threads-batch?"),
    ([*MODEL, "-ctk", "q8_0"], {}, "no such option: -ctk; did you mean --cache-type-k?"),
    ([*MODEL, "-ub=512"], {}, "no such option: -ub; did you mean --ubatch-size?"),
    (["-m", "m.gguf", "-md", "d.gguf"], {}, "no such option: -md; did you mean --draft-model?\n"),
    (
        ["-m", "m.gguf", "-ngl", "99", "--jinja", "-ctk", "q8_0", "--temp", "0.7", "--metrics"],
        {},
        "on here, so leave it out; -ctk: did you mean --cache-type-k?; --temp: each request sets its own temperature;",
    ),
    ([*MODEL, "--prot", "1", "--jinja"], {}, "no such options: --prot: did you mean --port or --host?; --jinja: it is"),
    (["-hf", "org/repo", *MODEL], {}, "two models: --model 'm.gguf' and -hf 'org/repo'; give one"),
    (["-hf", "org/repo", "x.gguf"], {}, "two models: -hf 'org/repo' and 'x.gguf'; give one"),
    (["-hf"], {}, "-hf"),
    (["-np", "many", *MODEL], {}, "--parallel: 'many' is not a valid integer"),
    ([*MODEL, "--temp", "1"], {}, "--temp; each request sets its own temperature"),
    (["generate", "Hi", "--temp", "1"], {}, "did you mean --temperature?"),
    (["generate", "Hi", "--port", "1"], {}, "no such option: --port"),
    (["generate", "Hi", "--parity-repor", "1"], {}, "no such option: --parity-repor\n"),
    (["generate", "Hi"], {"LLORCH_WATCHDOG_SEC": "soon"}, "LLORCH_WATCHDOG_SEC: 'soon'"),
    (["x.gguf", *MODEL], {}, "two models: --model 'm.gguf' and 'x.gguf'"),
    (["x.gguf", "y.gguf"], {}, "y.gguf"),
    (["x\ny.gguf"], {}, r"'x\ny.gguf' is not valid"),
    (["\udcff.gguf"], {}, r"'\udcff.gguf' is not valid"),
    (
        [*MODEL, "--device", "cpu", "--gpu-layers", "all"],
        {},
        "--gpu-layers all conflicts with --device cpu: remove one of the two",
    ),
    ([*MODEL, "--parallel", "8", "--ctx-size", "16"], {}, "the smallest --ctx-size for 8 jobs is 136"),
    ([*MODEL, "--catalog", "/nowhere.toml"], {}, "catalogue /nowhere.toml cannot be read"),
    ([*MODEL, "--chat-template", "/nowhere.jinja"], {}, "--chat-template /nowhere.jinja cannot be read"),
    (MODEL, {"LLORCH_CHAT_TEMPLATE_KWARGS": "[1]"}, "LLORCH_CHAT_TEMPLATE_KWARGS: '[1]' is not a JSON object"),
    (["-x"], {}, "-x"),
    (["frobnicate"], {}, "frobnicate"),
    (["servr", *MODEL], {}, "serve"),
    ([*MODEL, "leftover"], {}, "leftover"),
    ([*MODEL, "serve"], {}, "serve"),
    (["--model"], {}, "--model: a value is missing\n"),
    (["-m"], {}, "-m: a value is missing\n"),
    (["--model", "--port", "0"], {}, "--port"),
    ([*MODEL, "--port", "65536"], {}, "0<=x<=65535"),
    ([*MODEL, "--port", "http"], {}, "--port"),
    ([*MODEL, "--sse-event-names=yes"], {}, "--sse-event-names"),
    ([*MODEL, "--worker-id", "a\nb"], {}, "--worker-id"),
    ([*MODEL, "--local-mode=1"], {}, "--local-mode"),
    ([*MODEL, "--config", "/nowhere.toml"], {}, "/nowhere.toml"),
    ([*MODEL, "--api-key", ""], {}, "API token is empty"),
    (MODEL, {"LLORCH_API_TOKEN": ""}, "API token is empty"),
    (MODEL, {"LLORCH_API_KEY": ""}, "LLORCH_API_KEY: the API token is empty"),
    (MODEL, {"LLORCH_API_TOKEN": "a", "LLORCH_API_KEY": "b"}, "LLORCH_API_TOKEN and LLORCH_API_KEY"),
    (MODEL, {"LLORCH_MAX_QUEUE": "many"}, "LLORCH_MAX_QUEUE"),
    (["models"], {}, "--help"),
    (["models", "frobnicate"], {}, "frobnicate"),
    (["inspect"], {}, "MODEL"),
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
        assert ended_by(partial(process.send_signal, number), process) == 0
        assert process.communicate() == (b"", b"")


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_another_command_with_the_conventional_code(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    fifo = tmp_path / "models.toml"
    with reading_a_fifo(fifo, "models", "list", "--catalog", str(fifo)) as process:
        assert ended_by(partial(process.send_signal, number), process) == code
        assert process.communicate() == (b"", b"")
