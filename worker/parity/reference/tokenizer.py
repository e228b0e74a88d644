"""The tokenizer of a checkpoint, as the transformers library reads it.

Needs far less memory than the model. Refuses to know weights.
"""

from pathlib import Path
from typing import Any, Self

from worker.errors import UsageError
from worker.parity.reference.libraries import UNREADABLE, failure, quiet, transformers


class ReferenceTokenizer:
    """Made by `open`. `bos`: the token that the tokenizer puts before a text on its own, None where it puts none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        first = tokenizer.encode("a")[0]
        self.bos: int | None = first if first == tokenizer.bos_token_id else None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Raises: UsageError where `folder` is no checkpoint, or its tokenizer cannot be read."""
        try:
            with quiet():
                return cls(transformers.AutoTokenizer.from_pretrained(checked(folder), local_files_only=True))
        except UNREADABLE as error:
            raise UsageError(f"{folder}: the tokenizer cannot be read: {failure(error)}") from error

    def tokenize(self, text: str) -> list[int]:
        """Ids of `text`: special tokens in it are parsed, none is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def checked(folder: Path) -> Path:
    """`folder`, which looks like a checkpoint. Raises: UsageError saying what it lacks."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a checkpoint: it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} is not a SafeTensors checkpoint: it has no .safetensors file")
    return folder
