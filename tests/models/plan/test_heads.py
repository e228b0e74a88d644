"""The file and the settings say whether a model's next-token head drafts, and every reason is given."""

from dataclasses import replace
from typing import Any

import pytest

from tests.models.plan.rehearsed import info
from tests.models.plan.test_snapshots import config
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo
from worker.models.plan.heads import heads_off, with_heads
from worker.models.upstream.architectures import HYBRIDS, NEEDED_BY_A_HEAD, WITH_A_HEAD, WITH_SNAPSHOTS

N_LAYERS = len(info().head_counts_kv)
HEAD_BYTES = 500


def headed(architecture: str = "glm4moe", *, n_heads: int = 1, lacking: str = "") -> ModelInfo:
    """A model whose last layer is a head."""
    plain = info()
    names = [f"blk.{N_LAYERS - 1}.{name}" for name in NEEDED_BY_A_HEAD if name != lacking]
    own = tuple(Tensor(name, (HEAD_BYTES,), "I8", HEAD_BYTES) for name in names)
    return replace(
        plain,
        architecture=architecture,
        n_mtp_blocks=n_heads,
        tensors=(*(tensor for tensor in plain.tensors if f"blk.{N_LAYERS - 1}." not in tensor.name), *own),
    )


ON: dict[str, Any] = {"mtp": True}


@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        *((headed(name), ON, None) for name in WITH_A_HEAD),
        (info(), ON, "the file has no next-token head"),
        (headed(), {}, "--mtp would load it"),
        (headed(), {**ON, "deterministic": True}, "with --deterministic nothing is drafted"),
        (headed(n_heads=2), ON, "the file has 2 next-token heads, and the worker drafts with one"),
        (headed("deepseek2"), ON, "the worker does not draft with the heads of deepseek2"),
        (headed("qwen3next"), ON, "llama.cpp keeps no snapshots of qwen3next's recurrent state, so wrong drafts could"),
        (headed("qwen3next"), {}, "llama.cpp keeps no snapshots of qwen3next's recurrent state, so wrong drafts could"),
        *(
            (
                headed(lacking=name),
                ON,
                f"the file says that it has a next-token head, but lacks blk.{N_LAYERS - 1}.{name}",
            )
            for name in NEEDED_BY_A_HEAD
        ),
    ],
)
def test_the_reason_is_given(model: ModelInfo, changes: dict[str, Any], expected: str | None) -> None:
    found = heads_off(model, config(**changes))
    assert (found is None) is (expected is None)
    assert (found or "").startswith(expected or "")
    assert with_heads(model, config(**changes)).loads_heads is (expected is None)


def test_hybrids_with_a_head_can_take_drafts_back() -> None:
    assert set(WITH_A_HEAD) & set(HYBRIDS) <= set(WITH_SNAPSHOTS)


def test_a_head_is_loaded_with_its_tensors() -> None:
    model = headed()
    whole = with_heads(model, config(**ON))
    assert len(whole.loaded_tensors) - len(model.loaded_tensors) == len(NEEDED_BY_A_HEAD)
