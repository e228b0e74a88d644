"""The output of `inspect` for good files, bad files, and the default model."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import TINY_TENSORS, TensorRow, Value, tiny_model, tiny_split
from worker.cli import run
from worker.commands.inspect_gguf import Inspection, inspection_of
from worker.downloads.catalog import load_catalog
from worker.model.gguf import Tensor
from worker.model.info import read_info
from worker.plan.spread import nothing_repacked


def as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["inspect", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_every_field_of_the_inspection_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_json(tiny_model().write(tmp_path / "tiny.gguf"), capsys)
    assert list(found) == [field.name for field in fields(Inspection)]
    assert found["architecture"] == "llama"
    assert found["context_length"] == 512
    assert found["layers"] == 2
    assert found["vocabulary"] == 8
    assert found["tokenizer"] == "gguf-bpe"
    assert found["license"] == "apache-2.0"


@pytest.mark.parametrize(
    ("template", "has_one", "chat_format"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True, "hermes (generic)"),
        ("{{ messages }}<tool_call>", True, "hermes (declared)"),
        ("{% for %}", True, None),
        (None, False, None),
    ],
)
def test_the_chat_template_and_its_format_are_reported(
    template: str | None,
    has_one: bool,
    chat_format: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes: dict[str, Value | None] = {"tokenizer.chat_template": template}
    path = tiny_model(changes).write(tmp_path / "tiny.gguf")
    found = as_json(path, capsys)
    assert (found["has_chat_template"], found["chat_format"]) == (has_one, chat_format)


def test_tensor_types_account_for_all_tensors_and_bytes(tmp_path: Path) -> None:
    info = read_info(tiny_model().write(tmp_path / "tiny.gguf"))
    rows = inspection_of(info, 0, nothing_repacked).tensor_types
    assert sum(row.tensors for row in rows) == len(info.tensors)
    assert sum(row.bytes for row in rows) == info.weights_bytes
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_memory_estimate_adds_up_with_the_cells_that_serve_would_have_here(tmp_path: Path) -> None:
    info = read_info(tiny_model().write(tmp_path / "tiny.gguf"))
    rich = inspection_of(info, 2**50, nothing_repacked).memory
    assert (rich.available_bytes, rich.kv_cells) == (2**50, 8 * 512)
    assert (rich.repacked_bytes, rich.is_mapped) == (0, True)
    poor = inspection_of(info, rich.kv_bytes, nothing_repacked).memory
    assert (poor.available_bytes, poor.kv_cells) == (rich.kv_bytes, 2 * 512), "a quarter of what is free"
    for memory in (poor, rich):
        assert memory.total_bytes == memory.weights_bytes + memory.kv_bytes + memory.compute_bytes
        assert memory.prefix_cache_bytes == memory.kv_bytes


def test_weights_that_are_repacked_are_reported(tmp_path: Path) -> None:
    """A matrix for which the processor has kernels of its own; then the file is read, and all is there once."""
    matrix = TensorRow("output.weight", (32, 8), 32 * 8 * 4)
    info = read_info(tiny_model(tensors=[*TINY_TENSORS, matrix]).write(tmp_path / "tiny.gguf"))

    def repacked_bytes(tensor: Tensor) -> int:
        return tensor.n_bytes

    found = inspection_of(info, 0, repacked_bytes).memory
    assert (found.repacked_bytes, found.is_mapped, found.weights_bytes) == (matrix.n_bytes, False, info.weights_bytes)


def test_a_split_model_is_inspected_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(tiny_split(tmp_path)[0], capsys)
    assert found["files"] == 3
    assert found["tensor_types"][0]["tensors"] == 3


def test_a_model_is_named_as_for_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model may be a name in the catalogue, a file in the models directory, file:/path; a missing one is not
    fetched.
    """
    entry = load_catalog(None).default
    (there := tmp_path / entry.file).write_bytes(tiny_model().to_bytes())
    for reference in (entry.name, entry.file, f"file:{there}"):
        assert run(["inspect", reference, "--models-dir", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["path"] == str(there)
    there.unlink()
    for reference in (entry.name, "hf:org/repo"):
        assert run(["inspect", reference, "--models-dir", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"llorch-worker models pull {reference}" in err


def test_a_pipe_gets_lines_that_name_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tiny_model().write(tmp_path / "tiny.gguf"))]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [
        *("file", "size", "architecture", "name", "quantisation", "licence", "context", "layers", "vocabulary"),
        *(
            "chat template",
            "calls",
            "F32",
            "weights",
            "KV cache",
            "compute buffers",
            "total",
            "prefix cache",
            "available here",
        ),
    ]
    assert ["chat template", "yes"] in rows
    assert ["vocabulary", "8 tokens, gguf-bpe"] in rows
    assert ["F32", "3", "1.2 KiB", "100.0%"] in rows
    assert ["weights", "1.2 KiB", "mapped from the file"] in rows


def test_what_is_wrong_with_the_vocabulary_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_model({"tokenizer.ggml.eos_token_id": 8}).write(tmp_path / "tiny.gguf")
    outside, gaps = as_json(path, capsys)["vocabulary_remarks"]
    assert outside == "tokenizer.ggml.eos_token_id is 8, outside the vocabulary of 8 tokens, and is ignored"
    assert run(["inspect", str(path)]) == 0
    assert capsys.readouterr().err.splitlines() == [f"vocabulary: {outside}", f"vocabulary: {gaps}"]


def test_a_name_in_the_file_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_model({"general.name": "evil\x1b[2J\n[bold]x\u202e"}).write(tmp_path / "tiny.gguf")
    assert run(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert r"evil\x1b[2J\n[bold]x\u202e" in shown
    assert shown.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize("content", [None, b"", b"not a GGUF, though long enough for a header"])
def test_a_bad_file_is_one_line_and_exit_1(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    assert run(["inspect", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("llorch-worker: error: ")
    assert str(path) in err
    assert err.count("\n") == 1


def test_the_default_model_is_described(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(default_model, capsys)
    assert found["quantisation"] == "Q4_1"
    assert found["context_length"] == 8192
    assert found["vocabulary"] == 49152
    assert found["has_chat_template"] is True
    assert [row["type"] for row in found["tensor_types"]] == ["Q4_1", "Q8_0", "F32"]
    assert found["file_bytes"] == default_model.stat().st_size
    # What is laid out anew may take more than in the file, and an embedding that is the output is there twice.
    assert found["memory"]["weights_bytes"] - found["memory"]["repacked_bytes"] < found["file_bytes"]
