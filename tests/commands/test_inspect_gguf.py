"""The output of `inspect` for good files, bad files, and the default model."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gguf_files import Value, tiny_model, tiny_split
from tests.llama.tiny import vocabulary, write_tiny
from tests.models.plan.rehearsed import dry_run, repacking
from tests.models.plan.test_memory import CPU
from worker.cli import run
from worker.commands.inspect_gguf import Inspection, inspection_of
from worker.config.engine_settings import Configure
from worker.models.downloads.catalog import load_catalog
from worker.models.facts.info import ModelInfo, read_info
from worker.models.plan.placement import DryRun, Placement, trials_of

PLENTY = 1 << 50


def inspected(info: ModelInfo, available_bytes: int = PLENTY, run: DryRun = dry_run) -> Inspection:
    """The inspection of a file that llama.cpp need not load: the memory is that of a made-up dry run."""

    def estimate(config: Configure) -> Placement:
        (trial,) = trials_of(config, info, [CPU], available_bytes, run)
        return trial.estimate()

    return inspection_of(info, available_bytes, estimate)


def as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["inspect", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a failed inspection."""
    assert run(["inspect", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("llorch-worker: error: ")
    return err


def test_json_has_every_field_of_the_inspection_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_json(write_tiny(tmp_path / "tiny.gguf"), capsys)
    assert list(found) == [field.name for field in fields(Inspection)]
    named = msgspec.to_builtins(inspected(read_info(tiny_model().write(tmp_path / "named.gguf"))))
    expected = {"architecture": "llama", "context_length": 512, "layers": 2, "vocabulary": 8, "tokenizer": "gguf-bpe"}
    assert named.items() >= (expected | {"license": "apache-2.0"}).items()
    assert found["architecture"] == "llama"


@pytest.mark.parametrize(
    ("template", "chat_format"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "hermes (generic)"),
        ("{{ messages }}<tool_call>", "hermes (declared)"),
        ("{% for %}", None),
        (None, None),
    ],
)
def test_the_chat_template_and_its_format_are_reported(
    template: str | None, chat_format: str | None, tmp_path: Path
) -> None:
    changes: dict[str, Value | None] = {"tokenizer.chat_template": template}
    found = inspected(read_info(tiny_model(changes).write(tmp_path / "tiny.gguf")))
    assert (found.has_chat_template, found.chat_format) == (template is not None, chat_format)


def test_tensor_types_account_for_all_tensors_and_bytes(tmp_path: Path) -> None:
    """A split model is inspected as one."""
    for path, n_files in ((tiny_model().write(tmp_path / "tiny.gguf"), 1), (tiny_split(tmp_path)[0], 3)):
        info = read_info(path)
        found = inspected(info)
        assert found.files == n_files
        assert sum(row.tensors for row in found.tensor_types) == len(info.tensors)
        assert sum(row.bytes for row in found.tensor_types) == info.weights_bytes
        assert sum(row.share for row in found.tensor_types) == pytest.approx(1)


def test_the_memory_estimate_adds_up_with_the_cells_that_serve_would_have_here(tmp_path: Path) -> None:
    info = read_info(tiny_model().write(tmp_path / "tiny.gguf"))
    rich = inspected(info, 2**50).memory
    assert (rich.available_bytes, rich.kv_cells) == (2**50, 8 * 512)
    assert (rich.repacked_bytes, rich.is_mapped) == (0, True)
    poor = inspected(info, rich.kv_bytes).memory
    assert (poor.available_bytes, poor.kv_cells) == (rich.kv_bytes, 2 * 512), "a quarter of what is free"
    for memory in (poor, rich):
        assert memory.total_bytes == memory.weights_bytes + memory.kv_bytes + memory.compute_bytes
        assert memory.prefix_cache_bytes == memory.kv_bytes


def test_weights_that_are_repacked_are_reported(tmp_path: Path) -> None:
    """Then the file is read, and all is there once."""
    info = read_info(write_tiny(tmp_path / "tiny.gguf"))
    found = inspected(info, run=repacking).memory
    assert 0 < found.repacked_bytes < info.weights_bytes
    assert not found.is_mapped


def test_a_model_is_named_as_for_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model may be a name in the catalogue, a file in the models directory, file:/path; a missing one is not
    fetched.
    """
    entry = load_catalog(None).default
    there = write_tiny(tmp_path / entry.file)
    for reference in (entry.name, entry.file, f"file:{there}"):
        assert run(["inspect", reference, "--models-dir", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["path"] == str(there)
    there.unlink()
    for reference in (entry.name, "hf:org/repo"):
        said = complaint([reference, "--models-dir", str(tmp_path)], capsys)
        assert f"llorch-worker models pull {reference}" in said


def test_a_pipe_gets_lines_that_name_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(write_tiny(tmp_path / "tiny.gguf", chat_template="{{ messages }}"))]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [
        *("file", "size", "architecture", "name", "quantisation", "licence", "context", "layers", "vocabulary"),
        *("chat template", "calls", "F32", "weights", "KV cache", "compute buffers", "total", "prefix cache"),
        "available here",
    ]
    assert ["chat template", "yes"] in rows
    assert ["vocabulary", "262 tokens, gguf-spm"] in rows
    assert [row[2:] for row in rows if row[0] == "weights"] == [["mapped from the file"]]


def test_what_is_wrong_with_the_vocabulary_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {**vocabulary(), "tokenizer.ggml.eos_token_id": 262}
    path = write_tiny(tmp_path / "tiny.gguf", own_vocabulary=own)
    (outside,) = as_json(path, capsys)["vocabulary_remarks"]
    assert outside == "tokenizer.ggml.eos_token_id is 262, outside the vocabulary of 262 tokens, and is ignored"
    assert run(["inspect", str(path)]) == 0
    assert capsys.readouterr().err.splitlines() == [f"vocabulary: {outside}"]


def test_a_name_in_the_file_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {**vocabulary(), "general.name": "evil\x1b[2J\n[bold]x\u202e"}
    path = write_tiny(tmp_path / "tiny.gguf", own_vocabulary=own)
    assert run(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert r"evil\x1b[2J\n[bold]x\u202e" in shown
    assert shown.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ""),
        (b"", ""),
        (b"not a GGUF, though long enough for a header", ""),
        (tiny_model().to_bytes(), ": cannot be loaded: "),
    ],
    ids=["absent", "empty", "no GGUF", "refused by llama.cpp"],
)
def test_a_bad_file_is_one_line_and_exit_1(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one is refused by llama.cpp alone, which gives its reason."""
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    line = complaint([str(path)], capsys)
    assert f"{path}{said}" in line
    assert said == "" or "key not found in model: llama.attention.layer_norm_rms_epsilon" in line


def test_the_default_model_is_described(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(default_model, capsys)
    named = {"quantisation": "Q4_1", "context_length": 8192, "vocabulary": 49152, "has_chat_template": True}
    assert found.items() >= named.items()
    assert [row["type"] for row in found["tensor_types"]] == ["Q4_1", "Q8_0", "F32"]
    assert found["file_bytes"] == default_model.stat().st_size
    # What is laid out anew may take more than in the file, and an embedding that is the output is there twice.
    assert found["memory"]["weights_bytes"] - found["memory"]["repacked_bytes"] < found["file_bytes"]
