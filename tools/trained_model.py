"""Small models that were really trained: a Llama and a Gemma 3, saved as a publisher saves them, and their F32 GGUFs.

The text is English prose that every Python brings along: the reference topics of pydoc and the docstrings of the
standard library. What is made depends on the Python's version, torch's version and the number of threads, and on
nothing else: there are seeds, and no download. Needs the parity extra and `make vocabularies`.
"""

import ast
import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from tokenizers import normalizers

from tests.parity.other_architectures import convert, learn_pieces, write_gemma_tokenizer

N_PIECES = 2048
N_CTX = 512
_SEED = 16
_BATCH, _LENGTH = 8, 128
_PEAK_RATE, _WARM_UP_STEPS, _LAST_SHARE = 2e-3, 60, 0.05
_MAX_GRADIENT = 1.0
_WEIGHT_DECAY = 0.05
_MIN_DOCSTRING = 200


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of `train`."""

    checkpoint: Path
    gguf: Path
    """The same weights in F32, by llama.cpp's converter."""
    loss: float
    """The loss over the last tenth of the steps, in nats per token."""


def text() -> str:
    """Some 1.2 million characters, in a fixed order."""
    return "\n\n".join([*(topics[name] for name in sorted(topics)), *_docstrings()])


def llama() -> transformers.LlamaConfig:
    """A model like Llama 3.x: grouped heads, RoPE scaled by frequency, an output matrix of its own. Rows are multiples
    of 256, so that every matrix can be a K-quant.
    """
    return transformers.LlamaConfig(
        vocab_size=N_PIECES,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=N_CTX,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": N_CTX // 2,
        },
        tie_word_embeddings=False,
        **_SPECIAL,
    )


def gemma3() -> transformers.Gemma3TextConfig:
    """A model like Gemma 3: norms of Q and K, five layers with a window to one without, a RoPE base for each kind, tied
    output.

    The rows are multiples of 256 here, too.
    """
    return transformers.Gemma3TextConfig(
        vocab_size=N_PIECES,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=64,
        max_position_embeddings=N_CTX,
        **_SPECIAL,
    )


_SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
SHAPES: dict[str, Callable[[], Any]] = {"llama": llama, "gemma3": gemma3}


def train(shape: str, folder: Path, *, n_steps: int, say: Callable[[str], None]) -> Trained:
    """Write `folder`/checkpoint (bfloat16 SafeTensors in two shards, config, tokenizer) and `folder`/model-f32.gguf."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    ids = _tokenizer(shape, checkpoint)
    torch.manual_seed(_SEED)
    model = transformers.AutoModelForCausalLM.from_config(SHAPES[shape](), dtype=torch.float32)
    loss = _trained(model, torch.tensor(ids), n_steps, say)
    # What is published is bfloat16; the F32 GGUF has the rounded weights, too.
    model.to(torch.bfloat16).save_pretrained(checkpoint, max_shard_size="10MB")
    gguf = folder / "model-f32.gguf"
    convert(checkpoint, gguf)
    return Trained(checkpoint, gguf, loss)


def _docstrings() -> Iterator[str]:
    """The docstrings of the standard library that have enough text."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(node)
                if said is not None and len(said) >= _MIN_DOCSTRING:
                    yield said


def _tokenizer(shape: str, folder: Path) -> list[int]:
    """Learn SentencePiece pieces from the text, save what a publisher would, and return the text's ids."""
    if shape == "gemma3":
        write_gemma_tokenizer(text(), folder, N_PIECES)
    else:
        _write_llama_tokenizer(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return [int(token) for token in tokenizer(text(), add_special_tokens=False)["input_ids"]]


def _write_llama_tokenizer(folder: Path) -> None:
    """Write a tokenizer like those of Llama 2, Mistral and TinyLlama: every text gets a space in front."""
    learn_pieces(text(), folder, N_PIECES, add_dummy_prefix=True)
    tokenizer = transformers.LlamaTokenizer.from_pretrained(folder, add_bos_token=True)
    # transformers 5 makes another pre-tokenizer, which puts no space in front of one.
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = None
    tokenizer.save_pretrained(folder)


def _trained(model: Any, ids: torch.Tensor, n_steps: int, say: Callable[[str], None]) -> float:
    """AdamW over random pieces of the text; the mean loss of the last tenth of the steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.95), weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, n_steps))
    chance = torch.Generator().manual_seed(_SEED)
    losses: list[float] = []
    began_s = time.monotonic()
    for step in range(n_steps):
        starts = torch.randint(len(ids) - _LENGTH, (_BATCH,), generator=chance)
        batch = torch.stack([ids[start : start + _LENGTH] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            say(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.3f}, {time.monotonic() - began_s:.0f} s")
    last = losses[-max(n_steps // 10, 1) :]
    return sum(last) / len(last)


def _rate(step: int, n_steps: int) -> float:
    """A share of the peak: a straight rise, then half a cosine."""
    if step < _WARM_UP_STEPS:
        return (step + 1) / _WARM_UP_STEPS
    done = (step - _WARM_UP_STEPS) / max(n_steps - _WARM_UP_STEPS, 1)
    return _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
