"""The tensors of a checkpoint are read as they are stored, from one file or from shards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from parity.reference.tensors import CheckpointTensors
from worker.errors import UsageError

pytestmark = pytest.mark.torch


def one_tensor(folder: Path, tensor: torch.Tensor, **config: object) -> CheckpointTensors:
    save_file({"model.embed_tokens.weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return CheckpointTensors.open(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_type_is_read_as_pytorch_reads_it(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = one_tensor(tmp_path, tensor).read("model.embed_tokens.weight")
    assert found.dtype == np.float32
    assert np.array_equal(found, tensor.float().numpy())
    found[:] = 0  # a copy: the file stays as it is
    assert CheckpointTensors.open(tmp_path).read("model.embed_tokens.weight").any()


def test_numbers_that_are_not_floating_are_refused(tmp_path: Path) -> None:
    tensors = one_tensor(tmp_path, torch.ones(2, 2, dtype=torch.int8))
    with pytest.raises(UsageError, match=r"embed_tokens\.weight is I8; F64, F32, F16, BF16 can be compared"):
        tensors.read("model.embed_tokens.weight")


@pytest.mark.parametrize("is_tied", [True, False])
def test_output_of_a_tied_model_is_its_embedding(is_tied: bool, tmp_path: Path) -> None:
    tensors = one_tensor(tmp_path, torch.ones(2, 2), tie_word_embeddings=is_tied)
    assert tensors.names == {"model.embed_tokens.weight"}
    if is_tied:
        assert np.array_equal(tensors.read("lm_head.weight"), np.ones((2, 2)))
    else:
        with pytest.raises(KeyError):
            tensors.read("lm_head.weight")


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}'])
def test_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="not a SafeTensors"):
        CheckpointTensors.open(tmp_path)
