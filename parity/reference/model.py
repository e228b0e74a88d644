"""A checkpoint as transformers runs it, in float64: logits, every point of the network, greedy continuations.

For the llama family nothing is computed below float64 (exact.py); other architectures run as transformers has them. One
thread calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from parity.points import Activations
from parity.reference.exact import attention_name, layerwise, made_exact
from parity.reference.hooks import Recorder
from parity.reference.libraries import UNREADABLE, failure, quiet, torch, transformers
from parity.reference.tensors import CheckpointTensors
from worker.errors import UsageError
from worker.host import available_memory_bytes

LLAMA_FAMILY = ("llama", "mistral")
"""Values of `model_type` whose modules are llama's, name for name; llama.cpp reads both as `llama`."""

Dtype = Literal["float64", "float32"]


@dataclass(frozen=True, slots=True)
class ReferenceFacts:
    """The facts in config and tokenizer."""

    model_type: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    bos: int | None
    """The token that the tokenizer puts before a text on its own."""
    dtype: Dtype


class ReferenceTokenizer:
    """The tokenizer of a checkpoint, which needs far less memory than the model. Made by `open`.

    `bos`: the token that the tokenizer puts before a text on its own, None where it puts none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        first = tokenizer.encode("a")[0]
        self.bos: int | None = first if first == tokenizer.bos_token_id else None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Raises: UsageError where `folder` is no checkpoint, or its tokenizer cannot be read."""
        try:
            with quiet():
                return cls(_reader(_checked(folder)).from_pretrained(folder, local_files_only=True))
        except UNREADABLE as error:
            raise UsageError(f"{folder}: the tokenizer cannot be read: {failure(error)}") from error

    def tokenize(self, text: str) -> list[int]:
        """Ids of `text`: special tokens in it are parsed, none is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))


class Reference:
    """Made by `open`."""

    def __init__(self, model: Any, tokenizer: ReferenceTokenizer, facts: ReferenceFacts) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self.facts = facts

    @classmethod
    def open(cls, folder: Path, *, dtype: Dtype = "float64", n_threads: int, is_layerwise: bool | None = None) -> Self:
        """The checkpoint in `folder`, its weights cast to `dtype`.

        `n_threads` holds for all of PyTorch in this process. `is_layerwise`: the llama family with one layer in memory
        at a time; None: where the weights would take more than half of what memory is free. Raises: UsageError where
        `folder` is no checkpoint that transformers reads.
        """
        torch.set_num_threads(n_threads)
        tokenizer = ReferenceTokenizer.open(folder)
        if is_layerwise is None:
            n_bytes = CheckpointTensors.open(folder).n_weights * np.dtype(dtype).itemsize
            is_layerwise = n_bytes > available_memory_bytes() / 2
        model = _read(_checked(folder), dtype, is_layerwise=is_layerwise)
        return cls(model, tokenizer, _facts(model.config, tokenizer, dtype))

    def tokenize(self, text: str) -> list[int]:
        """Ids of `text`: special tokens in it are parsed, none is added."""
        return self._tokenizer.tokenize(text)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """[n_tokens, vocab_size], of all positions."""
        with torch.inference_mode():
            found = self._model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return np.asarray(found.numpy(), dtype=np.float64)

    def activations(self, tokens: Sequence[int]) -> Activations:
        """Every point of points.py, in this reference's dtype. Raises: UsageError outside the llama family."""
        if self.facts.model_type not in LLAMA_FAMILY:
            raise UsageError(
                f"the checkpoint is of the {self.facts.model_type} architecture; layer by layer only"
                f" {' and '.join(LLAMA_FAMILY)} are compared: leave the checkpoints level out"
            )
        with Recorder(self._model) as recorder, torch.inference_mode():
            self._model(torch.tensor([list(tokens)]), use_cache=False, recorder=recorder)
        return recorder.found

    def greedy(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> list[list[int]]:
        """`n_tokens` highest tokens after each prompt, the first of equals; tokens that end a text do not end it.

        The prompts are one batch. Raises: ValueError where they differ in length.
        """
        if len({len(prompt) for prompt in prompts}) > 1:
            raise ValueError(f"prompts of one length are needed, not of {[len(prompt) for prompt in prompts]}")
        fed = torch.tensor([list(prompt) for prompt in prompts])
        cache = transformers.DynamicCache(config=self._model.config)
        steps = []
        with torch.inference_mode():
            for _ in range(n_tokens):
                rows = self._model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                fed = rows[:, -1].argmax(-1, keepdim=True)
                steps.append(fed)
        return [[int(step[number]) for step in steps] for number in range(len(prompts))]


def _read(folder: Path, dtype: Dtype, *, is_layerwise: bool) -> Any:
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            is_llama = config.model_type in LLAMA_FAMILY
            if is_llama and is_layerwise:
                model = layerwise(config, folder, getattr(torch, dtype), attention_name())
            else:
                model = _whole(folder, dtype, attention_name() if is_llama else "eager")
    except UNREADABLE as error:
        raise UsageError(f"{folder}: transformers cannot read this checkpoint: {failure(error)}") from error
    return made_exact(model.eval()) if is_llama and dtype == "float64" else model.eval()


def _whole(folder: Path, dtype: Dtype, attention: str) -> Any:
    model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        output_loading_info=True,
        dtype=getattr(torch, dtype),
        attn_implementation=attention,
        local_files_only=True,
        use_safetensors=True,
    )
    if missing := sorted(loaded["missing_keys"]):
        raise UsageError(f"{folder}: the checkpoint lacks {missing[0]}: is it whole?")
    return model


def _reader(folder: Path) -> Any:
    """The class that reads the tokenizer. It reads `tokenizer.json` unchanged if the publisher wrote one.

    transformers' own classes make a tokenizer anew from its pieces and merges, with a pre-tokenizer of theirs: a text
    that begins with a space loses it in LlamaTokenizer, and not in the files of Llama 2, TinyLlama or Mistral.
    """
    is_written = (folder / "tokenizer.json").is_file()
    return transformers.PreTrainedTokenizerFast if is_written else transformers.AutoTokenizer


def _facts(config: Any, tokenizer: ReferenceTokenizer, dtype: Dtype) -> ReferenceFacts:
    n_heads = config.num_attention_heads
    return ReferenceFacts(
        model_type=config.model_type,
        n_layers=config.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // n_heads,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        bos=tokenizer.bos,
        dtype=dtype,
    )


def _checked(folder: Path) -> Path:
    """`folder`, which looks like a checkpoint. Raises: UsageError saying what it lacks."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a checkpoint: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} is not a SafeTensors checkpoint: it has no .safetensors file")
    return folder
