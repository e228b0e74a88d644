"""Tiny seeded random checkpoints of other architectures than llama, and their GGUFs by llama.cpp's own converter.

They can be distinguished: every weight matters to the logits, biases and norms included, and each architecture has
what llama has not (Qwen2: biases of Q, K and V; Qwen3: norms of Q and K, heads wider than the rows, tied output;
Gemma 2: four norms a layer, capped logits, a sliding window, GELU, a SentencePiece tokenizer with BOS; Gemma 3: norms
of Q and K, and one RoPE base for layers with a window, another for those without). Refuses to know what is compared.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from transformers.integrations.gguf import read_gguf_metadata

from tests.llama_source import converter
from tests.llama_source import folder as vocabularies

N_BYTES = 256
N_PIECES = 512
"""The number of pieces of the Gemma tokenizer."""
_PATIENCE_S = 120.0
_COMMON: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
QWEN = {**_COMMON, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.2}
GEMMA = {
    **_COMMON,
    "hidden_size": 64,
    "intermediate_size": 96,
    "initializer_range": 0.15,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 32,
}


def write_qwen2(folder: Path) -> None:
    """It has the vocabulary of the real Qwen2, because the converter knows a byte-pair tokenizer by what it does."""
    folder.mkdir()
    n_rows = _write_qwen2_tokenizer(folder)
    write_random(transformers.Qwen2Config(vocab_size=n_rows, **QWEN, tie_word_embeddings=False), folder)


def write_qwen3(folder: Path) -> None:
    """It is as a publisher writes it: bfloat16, in shards. The vocabulary is Qwen2's."""
    folder.mkdir()
    n_rows = _write_qwen2_tokenizer(folder)
    config = transformers.Qwen3Config(vocab_size=n_rows, **QWEN, head_dim=16, tie_word_embeddings=True)
    write_random(config, folder, as_published=True)


def write_gemma3(folder: Path, text: str) -> None:
    """It is as a publisher writes it: bfloat16, in shards. It has five layers with a window to one without."""
    folder.mkdir()
    write_gemma_tokenizer(text, folder, N_PIECES)
    config = transformers.Gemma3TextConfig(vocab_size=N_PIECES, **GEMMA, num_hidden_layers=6)
    write_random(config, folder, as_published=True)


def write_gemma2(folder: Path, text: str) -> None:
    """It has a SentencePiece tokenizer of its own, learnt from `text`."""
    folder.mkdir()
    write_gemma_tokenizer(text, folder, N_PIECES)
    write_random(transformers.Gemma2Config(vocab_size=N_PIECES, **GEMMA, num_hidden_layers=2), folder)


def write_random(config: Any, folder: Path, *, seed: int = 4, as_published: bool = False, **saving: Any) -> None:
    """A checkpoint of `config`'s architecture: float32, or as publishers write it, bfloat16 in several files.

    Vectors (biases, norms) are moved off the ones and zeros that they begin as, for else a mistake in their use would
    not show. The embedding is made small: else a tied output answers every token with itself.
    """
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.2)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    if as_published:
        n_bytes = 2 * sum(parameter.numel() for parameter in model.parameters())
        model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=n_bytes // 2, **saving)
    else:
        model.save_pretrained(folder, **saving)


def convert(checkpoint: Path, gguf: Path) -> None:
    """An F32 GGUF. A process of its own: the converter prints, and imports a gguf package that is not the installed."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_LOCAL_GGUF"}
    command = [sys.executable, str(converter()), str(checkpoint), "--outtype", "f32", "--outfile", str(gguf)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, cwd=gguf.parent
    )
    assert done.returncode == 0, done.stderr


def _write_qwen2_tokenizer(folder: Path) -> int:
    """Write llama.cpp's test vocabulary: a piece for each byte, one for each merge, then the special ones, then names
    for rows of the embedding that are no token. Returns the number of all, as in the real one."""
    keys = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    # The gguf package's reader takes many times as long for 300,000 strings.
    metadata, _ = read_gguf_metadata(str(vocabularies() / "ggml-vocab-qwen2.gguf"), keys)
    pieces, merges = (metadata[key] for key in keys)
    n_ordinary = N_BYTES + len(merges)
    tokenizer = transformers.Qwen2Tokenizer(
        vocab={piece: number for number, piece in enumerate(pieces[:n_ordinary])},
        merges=[tuple(merge.split(" ")) for merge in merges],
    )
    special = [piece for piece in pieces[n_ordinary:] if not piece.startswith("[PAD")]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.save_pretrained(folder)
    return len(pieces)


def write_gemma_tokenizer(text: str, folder: Path, n_pieces: int) -> None:
    """tokenizer.model, which the converter reads, and from it what transformers reads: pieces learnt from `text`."""
    names = {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>", "user_defined_symbols": ["<mask>"]}
    learn_pieces(text, folder, n_pieces, add_dummy_prefix=False, **names)
    tokenizer = transformers.GemmaTokenizer.from_pretrained(folder)
    tokenizer.add_bos_token = True
    tokenizer.save_pretrained(folder)


def learn_pieces(text: str, folder: Path, n_pieces: int, *, add_dummy_prefix: bool, **more: Any) -> None:
    """Write tokenizer.model: SentencePiece's byte-pair pieces of `text`, bytes among them, text left as it is."""
    source = folder / "text"
    source.write_text(text, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(source),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=n_pieces,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        num_threads=1,
        minloglevel=2,
        **more,
    )
    source.unlink()
    (folder / "tokenizer.vocab").unlink()
