"""A file that cannot be a model is one clear line and exit 1, refused before the engine starts.

tests/models/facts/test_info.py has every rule and every place of a cut; here the whole process is asked, once for each
kind.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gguf_files import TINY_TENSORS, TensorRow, Typed, tiny_model, tiny_split
from tests.worker_process import Event, WorkerProcess

pytestmark = pytest.mark.process

Maker = Callable[[Path], Path]
"""Writes a file into an empty folder; returns the path to serve."""

WITHOUT_THE_RIGHTS_OF_ROOT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def refusal(worker: WorkerProcess) -> Event:
    """The one error line; the engine was never started, not even the port was bound."""
    line = worker.failure()
    assert [entry["event"] for entry in worker.log] == ["startup", "error", "shutdown"]
    assert "\n" not in line["message"]
    return line


def written(content: bytes) -> Maker:
    def write(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(content)
        return path

    return write


def cut(numerator: int, denominator: int) -> Maker:
    whole = tiny_model().to_bytes()
    return written(whole[: len(whole) * numerator // denominator])


def with_last_tensor(row: TensorRow) -> Maker:
    return written(tiny_model(tensors=[*TINY_TENSORS[:-1], row]).to_bytes())


def split_without_its_last_part(folder: Path) -> Path:
    first, *_, last = tiny_split(folder)
    last.unlink()
    return first


END = sum(row.n_bytes for row in TINY_TENSORS)
NORM = TINY_TENSORS[-1]

BAD_FILES: dict[str, tuple[Maker, str]] = {
    "empty": (written(b""), "the file is empty"),
    "a directory": (lambda folder: folder, "a directory"),
    "text": (written(b"This is not a model.\n" * 100), "GGUF"),
    "another format": (written(b"PK\x03\x04" + bytes(1000)), "GGUF"),
    "version 1": (written(replace(tiny_model(), version=1).to_bytes()), "version"),
    "version 999": (written(replace(tiny_model(), version=999).to_bytes()), "version"),
    "2^63 tensors": (written(replace(tiny_model(), n_tensors=2**63).to_bytes()), "tensors"),
    "10,000 tensors": (written(replace(tiny_model(), n_tensors=10_000).to_bytes()), "tensors"),
    "2^63 keys": (written(replace(tiny_model(), n_keys=2**63).to_bytes()), "keys"),
    "data at the end": (with_last_tensor(replace(NORM, offset=END)), NORM.name),
    "data past the end": (with_last_tensor(replace(NORM, offset=1 << 40)), NORM.name),
    "an offset that overflows": (with_last_tensor(replace(NORM, offset=2**64 - 32)), NORM.name),
    "dimensions that overflow": (with_last_tensor(replace(NORM, dims=(2**62, 2**62))), NORM.name),
    "no architecture": (written(tiny_model({"general.architecture": None}).to_bytes()), "general.architecture"),
    "no block count": (written(tiny_model({"llama.block_count": None}).to_bytes()), "llama.block_count"),
    "no vocabulary": (written(tiny_model({"tokenizer.ggml.tokens": None}).to_bytes()), "tokenizer.ggml.tokens"),
    "block count 0": (written(tiny_model({"llama.block_count": 0}).to_bytes()), "llama.block_count"),
    "block count 2^31-1": (written(tiny_model({"llama.block_count": 2**31 - 1}).to_bytes()), str(2**31 - 1)),
    "a head count that overflows": (
        written(tiny_model({"llama.attention.head_count": Typed("u64", 2**63)}).to_bytes()),
        "llama.attention.head_count",
    ),
    "a split without its last part": (split_without_its_last_part, "tiny-00003-of-00003.gguf"),
    **{f"cut at {n}/6": (cut(n, 6), "") for n in range(1, 6)},
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_line_before_the_engine_starts(kind: str, tmp_path: Path) -> None:
    make, reason = BAD_FILES[kind]
    path = make(tmp_path)
    with WorkerProcess("--model", str(path), "--port", "0") as worker:
        line = refusal(worker)
    assert (line["code"], line["model"], line["device"]) == ("MODEL_LOAD_FAILED", str(path), "auto")
    assert str(path.parent) in line["message"]
    assert reason in line["message"]


def test_an_unreadable_file_is_one_line_before_the_engine_starts(tmp_path: Path) -> None:
    """Root reads everything; without two capabilities it is a user like any other."""
    command: tuple[str, ...] = (sys.executable, "-m", "worker")
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root reads every file, and there is no setpriv to take that right away")
        command = (*WITHOUT_THE_RIGHTS_OF_ROOT, *command)
    path = tiny_model().write(tmp_path / "locked.gguf")
    path.chmod(0)
    with WorkerProcess("--model", str(path), "--port", "0", command=command) as worker:
        line = refusal(worker)
    assert "Permission denied" in line["message"]


def test_a_file_that_only_llama_cpp_refuses_gives_its_reason(tmp_path: Path) -> None:
    """It passes our checks, but one key and most of its tensors are missing."""
    path = tiny_model().write(tmp_path / "tiny.gguf")
    with WorkerProcess("--model", str(path), "--port", "0") as worker:
        line = worker.failure()
    assert (line["code"], line["model"]) == ("MODEL_LOAD_FAILED", str(path))
    assert line["message"].startswith(f"{path}: cannot be loaded: ")
    assert "key not found in model: llama.attention.layer_norm_rms_epsilon" in line["message"], (
        "the library's own words"
    )
