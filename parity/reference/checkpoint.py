"""Conversion of a GGUF to a SafeTensors checkpoint with the same weights, tokenizer and config.

For a model of which only the GGUF is at hand: what is compared then is the running of the model, not its quantisation.
The reading is transformers' own.
"""

import io
import math
import mmap
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from parity.gguf_reader import used_by_transformers
from parity.reference.libraries import (
    UNREADABLE,
    AddedToken,
    failure,
    pre_tokenizers,
    quiet,
    read_gguf_metadata,
    torch,
    transformers,
)
from parity.references import write_origin
from worker.errors import UsageError
from worker.models.facts.gguf import read_header
from worker.models.facts.info import ModelInfo, read_info

_SPLITS_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2")
"""Values of tokenizer.ggml.pre with which llama.cpp makes each digit a word (llama-vocab.cpp). transformers reads them
as GPT-2's."""

_TYPES_OF_TOKENS, _USER_DEFINED = "tokenizer.ggml.token_type", 4
"""llama.h: LLAMA_TOKEN_TYPE_USER_DEFINED."""


def dequantise(gguf: Path, folder: Path) -> None:
    """Write the checkpoint, weights as float32; `folder` appears whole or not at all.

    Needs memory for the float32 weights. Raises: UsageError where there is something at `folder`, or transformers
    would not read all of the file; ModelNotFound, BadModelFile.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: remove it, or use it as the reference")
    info = read_info(gguf)
    _refuse_what_would_be_lost(info)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as staging:
        whole = Path(staging) / "checkpoint"
        whole.mkdir()
        _write(info, whole)
        write_origin(gguf, whole)
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)


def _refuse_what_would_be_lost(info: ModelInfo) -> None:
    """transformers reads one file, and neither the metadata nor the tensor with which a llama GGUF scales RoPE."""
    name = info.path.name
    if len(info.part_paths) > 1:
        raise UsageError(f"{name} is one of {len(info.part_paths)} files; transformers reads a GGUF from one file only")
    scaling = _remark(info, f"{info.architecture}.rope.scaling.type")
    if scaling not in (None, "none") or any(tensor.name == "rope_freqs.weight" for tensor in info.tensors):
        raise UsageError(
            f"{name} scales RoPE, which is lost when transformers reads a GGUF: give the SafeTensors checkpoint that it"
            " was made from as the reference"
        )


def _write(info: ModelInfo, folder: Path) -> None:
    model = _read(info, transformers.AutoModelForCausalLM, dtype=torch.float32)
    _save_weights(model, info, folder)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # says that the weights are a GGUF's, which they no longer are
    model.config.save_pretrained(folder)
    tokenizer = _read(info, transformers.AutoTokenizer)
    if _remark(info, "tokenizer.ggml.pre") in _SPLITS_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if info.tokenizer_model == "llama":
        _add_user_defined(info, tokenizer)
    tokenizer.save_pretrained(folder)


def _add_user_defined(info: ModelInfo, tokenizer: Any) -> None:
    """SentencePiece takes these pieces whole, before it merges anything: Gemma's line breaks, runs of spaces and tags.
    transformers reads them as pieces like any other."""
    metadata, _ = read_gguf_metadata(str(info.path), (_TYPES_OF_TOKENS,))
    known = tokenizer.added_tokens_decoder
    numbers = [number for number, kind in enumerate(metadata[_TYPES_OF_TOKENS]) if kind == _USER_DEFINED]
    pieces = tokenizer.convert_ids_to_tokens([number for number in numbers if number not in known])
    tokenizer.add_tokens([AddedToken(piece, normalized=True, special=False) for piece in pieces])


def _remark(info: ModelInfo, key: str) -> str | None:
    with info.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read_header(data, info.path).metadata.remark(key)


def _read(info: ModelInfo, kind: Any, **reading: Any) -> Any:
    """The model or the tokenizer, whichever `kind` reads. Raises: UsageError."""
    name = info.path.name
    try:
        # The bar over the tensors of a GGUF is not among those that transformers lets one switch off.
        with quiet(), used_by_transformers(), redirect_stderr(io.StringIO()):
            return kind.from_pretrained(info.path.parent, gguf_file=name, local_files_only=True, **reading)
    except UNREADABLE as error:
        raise UsageError(f"{name}: transformers cannot read this GGUF: {failure(error)}") from error


def _save_weights(model: Any, info: ModelInfo, folder: Path) -> None:
    """Save with safetensors itself: transformers refuses to save a model that it read from a GGUF.

    A tensor that transformers does not know is passed over, and one that it misses is made up: both are refused.
    """
    weights = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    n_read, n_there = sum(map(np.size, weights.values())), sum(math.prod(tensor.dims) for tensor in info.tensors)
    if n_read != n_there:
        raise UsageError(
            f"{info.path.name} has {n_there} weights where transformers' {model.config.model_type} model has {n_read}:"
            " give the SafeTensors checkpoint that it was made from as the reference"
        )
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
