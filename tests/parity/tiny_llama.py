"""A tiny seeded random checkpoint of the llama architecture, for tests that need no trained one."""

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from tests.parity.other_architectures import write_random

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, VOCAB_SIZE = 3, 4, 2, 8, 60
RMS_NORM_EPS, ROPE_THETA = 1e-3, 500.0
BOS = 1
PIECES = ["<unk>", "<s>", "</s>", *"abcdefgh"]
TOKENS = [7, 3, 50, 3, 12, 0, 44, 31, 9, 2, 58, 17]
"""A text."""


def write_tiny_llama(folder: Path, *, max_shard_size: str = "1GB", **others: Any) -> Path:
    """A new folder, returned. Its tokenizer knows eight letters and begins a text with BOS. `others`: more of its
    config, in place of what is here."""
    folder.mkdir()
    _write_tokenizer(folder)
    ours = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_DIM,
        "initializer_range": 0.3,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "tie_word_embeddings": False,
    }
    write_random(transformers.LlamaConfig(**(ours | others)), folder, max_shard_size=max_shard_size)
    return folder


def _write_tokenizer(folder: Path) -> None:
    letters = Tokenizer(WordLevel({piece: number for number, piece in enumerate(PIECES)}, unk_token="<unk>"))
    letters.pre_tokenizer = Split("", "isolated")
    letters.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
