"""llama.cpp's own test vocabularies: which there are, and their texts with the tokens of the reference tokenisers.

They are not in this repository: `make vocabularies` (python -m tests.vocabularies) brings them with what else the tests
take from llama.cpp's source (tests/llama_source.py). Knows nothing of how they are loaded
(tests/llama/test_vocabularies.py).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.llama_source import fetch, folder

_SEPARATOR = "\n__ggml_vocab_test__\n"

Kind = Literal["byte-level BPE", "BPE with byte fallback", "SentencePiece", "Unigram", "WordPiece"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One ggml-vocab-NAME.gguf. `bos`: the token that its metadata puts before a prompt."""

    name: str
    kind: Kind
    bos: int | None
    has_cases: bool = True
    """True if texts and their tokens by the reference tokeniser lie next to it."""

    @property
    def path(self) -> Path:
        return folder() / f"ggml-vocab-{self.name}.gguf"

    @property
    def case_paths(self) -> tuple[Path, ...]:
        """The texts, then their tokens."""
        return (Path(f"{self.path}.inp"), Path(f"{self.path}.out")) if self.has_cases else ()

    def cases(self) -> list[tuple[str, list[int]]]:
        """Texts with their tokens, no BOS among them; none where upstream has none."""
        if not self.has_cases:
            return []
        texts, rows = (path.read_bytes().decode() for path in self.case_paths)
        pairs = zip(texts.removesuffix(_SEPARATOR).split(_SEPARATOR), rows.splitlines(), strict=True)
        return [(text, [int(token) for token in row.split()]) for text, row in pairs]


VOCABULARIES = (
    Vocabulary("aquila", "byte-level BPE", None, has_cases=False),
    Vocabulary("baichuan", "SentencePiece", 1, has_cases=False),
    Vocabulary("bert-bge", "WordPiece", 101),
    Vocabulary("command-r", "byte-level BPE", 5),
    Vocabulary("deepseek-coder", "byte-level BPE", 32013),
    Vocabulary("deepseek-llm", "byte-level BPE", 100000),
    Vocabulary("falcon", "byte-level BPE", None),
    Vocabulary("gemma-4", "BPE with byte fallback", 2),
    Vocabulary("gpt-2", "byte-level BPE", None),
    Vocabulary("gpt-neox", "byte-level BPE", None, has_cases=False),
    Vocabulary("llama-bpe", "byte-level BPE", 128000),
    Vocabulary("llama-spm", "SentencePiece", 1),
    Vocabulary("mpt", "byte-level BPE", None),
    Vocabulary("nomic-bert-moe", "Unigram", 0, has_cases=False),
    Vocabulary("phi-3", "SentencePiece", 1),
    Vocabulary("qwen2", "byte-level BPE", None),
    Vocabulary("qwen35", "byte-level BPE", None),
    Vocabulary("refact", "byte-level BPE", None),
    Vocabulary("starcoder", "byte-level BPE", None),
)


def texts() -> list[str]:
    """Every text of every vocabulary's cases, once."""
    return sorted({text for vocabulary in VOCABULARIES for text, _ in vocabulary.cases()})


if __name__ == "__main__":
    fetch()
