"""The `models` commands: results on stdout, a path and nothing else where one is asked for, exit codes by error."""

import hashlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from worker.commands.models import models
from worker.errors import BadModelFile, ModelNotFound, UsageError
from worker.models.downloads.catalog import load_catalog

CONTENT = b"weights"
ENTRY = """
[[model]]
name = "{name}"
default = {default}
file = "{name}.gguf"
sha256 = "{sha256}"
license = "Apache-2.0"
sources = [{{ kind = "url", url = "http://127.0.0.1:1/{name}.gguf" }}]
"""


@pytest.fixture
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models directory with the models `good` and `changed`; the catalogue also has `absent`, of 5 MB."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    catalog = tmp_path / "catalog.toml"
    defaults = {"good": "true", "changed": "false", "absent": "false"}
    entries = (ENTRY.format(name=name, default=default, sha256=digest) for name, default in defaults.items())
    catalog.write_text("".join(entries) + "size_bytes = 5_000_000\n")
    models_dir = tmp_path / "models"
    models_dir.mkdir()
    (models_dir / "good.gguf").write_bytes(CONTENT)
    (models_dir / "changed.gguf").write_bytes(CONTENT + b"!")
    monkeypatch.setenv("LLORCH_CATALOG", str(catalog))
    monkeypatch.setenv("LLORCH_MODELS_DIR", str(models_dir))
    return models_dir


def run(*arguments: str) -> Result:
    return CliRunner().invoke(models, arguments)


def test_list_is_plain_lines_when_piped(models_dir: Path) -> None:
    assert run("list").stdout.splitlines() == [
        "good\t7 bytes\tApache-2.0\tyes",
        "changed\t8 bytes\tApache-2.0\tyes",
        "absent\t5.0 MB\tApache-2.0\tno",
    ]


def test_list_is_a_table_on_a_terminal(models_dir: Path) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        with os.fdopen(theirs, "wb") as terminal:
            subprocess.run([sys.executable, "-m", "worker", "models", "list"], stdout=terminal, check=True, timeout=60)
        shown = reader.read(20_000).decode()
    assert "licence" in shown
    assert "good" in shown
    assert "─" in shown


def test_list_shows_the_built_in_catalogue_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLORCH_CATALOG", raising=False)
    lines = run("list", "--models-dir", str(tmp_path)).stdout.splitlines()
    assert lines[0] == "smollm2-135m-instruct\t98.4 MB\tApache-2.0\tno"
    assert len(lines) == len(load_catalog(None).entries)


def test_path_prints_the_path_and_nothing_else_or_the_model_is_not_found(models_dir: Path) -> None:
    result = run("path", "good")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{models_dir / 'good.gguf'}\n", "")
    absent = run("path", "absent")
    assert isinstance(absent.exception, ModelNotFound)
    assert absent.stdout == ""
    assert "models pull absent" in str(absent.exception)


def test_pull_of_a_present_file_prints_its_absolute_path_for_every_form(
    models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models_dir.parent)
    path = models_dir / "good.gguf"
    for reference in ("good", "good.gguf", str(path), f"file:{path}", "models/good.gguf"):
        result = run("pull", reference)
        assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    refused = run("pull", "changed").exception
    assert isinstance(refused, BadModelFile), "another file has the catalogue's name"
    assert str(refused).endswith("; delete it")


def test_flags_win_over_the_environment(models_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert isinstance(run("path", "good", "--models-dir", str(other)).exception, ModelNotFound)
    assert isinstance(run("list", "--catalog", str(tmp_path / "none.toml")).exception, UsageError)


def test_verify_reports_each_and_fails_on_one_difference(models_dir: Path, tmp_path: Path) -> None:
    alone = run("verify", "good")
    assert (alone.exit_code, alone.stdout) == (0, "good: ok\n")
    result = run("verify")
    good, changed = result.stdout.splitlines()
    assert good == "good: ok"
    assert all(hashlib.sha256(content).hexdigest() in changed for content in (CONTENT, CONTENT + b"!"))
    assert isinstance(result.exception, BadModelFile)
    assert "changed.gguf" in str(result.exception)
    for name in ("absent", "unheard-of"):
        assert isinstance(run("verify", name).exception, ModelNotFound)
    empty = tmp_path / "empty"
    nothing = run("verify", "--models-dir", str(empty))
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert str(empty) in nothing.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["path", "absent"], 1),
        (["pull", "unheard-of"], 1),
        (["verify"], 1),
        (["pull"], 2),
        (["list", "--catalog", "BAD"], 2),
    ],
)
def test_errors_are_exit_codes_without_a_traceback(arguments: list[str], code: int, models_dir: Path) -> None:
    bad = models_dir.parent / "bad.toml"
    bad.write_text("model = 1")
    command = [sys.executable, "-m", "worker", "models", *(str(bad) if each == "BAD" else each for each in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert result.stderr
    assert "BAD" not in arguments or (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_every_command_has_help() -> None:
    assert isinstance(models, click.Group)
    for name in models.commands:
        result = run(name, "--help")
        assert result.exit_code == 0
        assert "--models-dir" in result.stdout
