"""The library is given a model that worker/models/facts/info.py refuses, and comes to harm."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_files import F32
from tests.llama.shapes import TINY_LLAMA, write_shape
from tests.llama.tiny import write_tiny
from worker.errors import BadModelFile
from worker.models.facts.info import read_info

pytestmark = pytest.mark.process

COMPUTE = """
import sys
from pathlib import Path
import numpy as np
from parity.llama.scoring import Scorer
from parity.setups import EXACT, opened
with opened(Path(sys.argv[1])) as model, Scorer(model, EXACT, n_ctx=64, n_threads=1) as scorer:
    print("finite" if np.isfinite(scorer.logits([1, 5, 6, 7])).all() else "not finite")
"""

ABORTED = "aborted"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a negative epsilon": ({"attention.layer_norm_rms_epsilon": -1e-5}, ABORTED),
    "an epsilon that is no number": ({"attention.layer_norm_rms_epsilon": float("nan")}, ABORTED),
    "a rope that turns nothing": ({"rope.freq_base": 0.0}, "not finite"),
    "a scale that is no number": ({"rope.scaling.factor": float("nan")}, "not finite"),
}


def outcome(path: Path) -> str:
    command = [sys.executable, "-c", COMPUTE, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return ABORTED if done.returncode < 0 else done.stdout.strip() or done.stderr


@pytest.mark.parametrize("kind", BAD)
def test_a_refused_model_would_have_ended_the_engine_or_said_nothing(tmp_path: Path, kind: str) -> None:
    changes, expected = BAD[kind]
    path = write_tiny(tmp_path / "tiny.gguf", weight=0.5, **changes)
    with pytest.raises(BadModelFile):
        read_info(path)
    assert outcome(path) == expected


@pytest.mark.parametrize(("type_id", "matrix"), [(9, "attn_q"), (15, "attn_q"), (28, "token_embd"), (26, "attn_q")])
def test_a_matrix_of_a_type_without_a_product_would_have_ended_it(tmp_path: Path, type_id: int, matrix: str) -> None:
    """Q8_1, Q8_K, F64 and I32."""
    shape = replace(TINY_LLAMA, n_embd=256, n_ff=256, n_head=4, n_head_kv=4, n_vocab=300, n_layers=1)
    path = write_shape(tmp_path / "m.gguf", shape, lambda name: type_id if name.endswith(matrix) else F32)
    with pytest.raises(BadModelFile, match="cannot multiply matrices of that type"):
        read_info(path)
    assert outcome(path) == ABORTED


def test_a_model_of_halves_where_they_may_be_is_computed(tmp_path: Path) -> None:
    halves = ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight")
    path = write_tiny(tmp_path / "tiny.gguf", weight=0.5, halves=halves)
    assert [tensor.name for tensor in read_info(path).tensors if tensor.type_name == "F16"] == list(halves)
    assert outcome(path) == "finite"
