"""A file that cannot be a model is one clear line and exit 1, refused before the engine starts.

tests/models/facts/test_info.py has every rule and every place of a cut; here the whole process is asked.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import Typed, tiny_model, tiny_split
from tests.llama.tiny import N_EMBD, write_tiny
from tests.worker_process import Event, WorkerProcess

pytestmark = pytest.mark.process

WITHOUT_THE_RIGHTS_OF_ROOT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def refusal(worker: WorkerProcess) -> Event:
    """The one error line; the engine was never started, not even the port was bound."""
    line = worker.failure()
    assert [entry["event"] for entry in worker.log] == ["startup", "error", "shutdown"]
    assert "\n" not in line["message"]
    return line


BAD_FILES = {
    "a text": (b"This is not a model.\n" * 100, "GGUF"),
    "cut": (tiny_model().to_bytes()[:-100], ""),
    "2^63 tensors": (replace(tiny_model(), n_tensors=2**63).to_bytes(), "tensors"),
    "a value that overflows": (
        tiny_model({"llama.attention.head_count": Typed("u64", 2**63)}).to_bytes(),
        "llama.attention.head_count",
    ),
}


@pytest.mark.parametrize("kind", [*BAD_FILES, "a directory", "a split without its last part"])
def test_a_bad_file_is_one_line_before_the_engine_starts(kind: str, tmp_path: Path) -> None:
    path, reason = tmp_path, "a directory"
    if kind in BAD_FILES:
        content, reason = BAD_FILES[kind]
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
    elif kind != "a directory":
        (path, *_, last), reason = tiny_split(tmp_path), "tiny-00003-of-00003.gguf"
        last.unlink()
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


OF_HALVES = "unsupported types: dst: f32, src0: f32, src1: f16"
NOT_COMPUTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a norm of halves": ({"halves": ("blk.0.attn_norm.weight",)}, "ENGINE_CRASHED", OF_HALVES),
    "a bias of halves": (
        {"more": {"blk.0.attn_q.bias": (N_EMBD,)}, "halves": ("blk.0.attn_q.bias",)},
        "ENGINE_CRASHED",
        OF_HALVES,
    ),
    "rope factors of halves": (
        {"more": {"rope_freqs.weight": (4,)}, "halves": ("rope_freqs.weight",)},
        "MODEL_LOAD_FAILED",
        "GGML_ASSERT(c->type == GGML_TYPE_F32) failed",
    ),
    "heads of one number": (
        {"attention.head_count": N_EMBD},
        "ENGINE_CRASHED",
        "GGML_ASSERT(n_dims % 2 == 0) failed",
    ),
}


@pytest.mark.parametrize("kind", NOT_COMPUTED)
def test_a_file_over_which_a_dry_run_or_the_first_step_ends_its_process_is_one_line_with_its_reason(
    kind: str, tmp_path: Path
) -> None:
    changes, code, words = NOT_COMPUTED[kind]
    path = write_tiny(tmp_path / "tiny.gguf", **changes)
    with WorkerProcess("--model", str(path), "--port", "0", "--device", "cpu") as worker:
        line = worker.failure()
    assert (line["code"], line["model"]) == (code, str(path))
    assert words in line["message"]
