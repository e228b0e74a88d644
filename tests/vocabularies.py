"""llama.cpp's own test vocabularies: which there are, and the set-up that takes them out of its source distribution.

They are not in this repository. `make vocabularies` (python -m tests.vocabularies) has pip download the source of the
llama-cpp-python that is installed, once per version, and keeps these files alone in a folder that git ignores.
Knows nothing of how they are loaded (tests/llama/test_vocabularies.py).
"""

import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

_PACKAGE = "llama-cpp-python"
_VERSION = version(_PACKAGE)
_FOLDER = Path(__file__).parents[1] / ".vocabularies" / _VERSION

_MEMBER = re.compile(r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[^/]+\.gguf(?:\.inp|\.out)?)")
_SEPARATOR = "\n__ggml_vocab_test__\n"

Kind = Literal["byte-level BPE", "BPE with byte fallback", "SentencePiece", "Unigram", "WordPiece"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One ggml-vocab-NAME.gguf. `bos`: the token that its metadata puts before a prompt."""

    name: str
    kind: Kind
    bos: int | None
    has_cases: bool = True
    """Whether texts and their tokens by the reference tokeniser lie beside it."""

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


def folder() -> Path:
    """Where the files are."""
    assert _FOLDER.is_dir(), f"{_FOLDER} is missing: run `make vocabularies`"
    return _FOLDER


def texts() -> list[str]:
    """Every text of every vocabulary's cases, once."""
    return sorted({text for vocabulary in VOCABULARIES for text, _ in vocabulary.cases()})


def fetch() -> None:
    """Make the folder unless it is there; it appears whole or not at all. Exits with one line where pip cannot help."""
    if _FOLDER.is_dir():
        return
    sys.stderr.write("==> fetching llama.cpp's source for its test vocabularies (77 MB), once\n")
    _FOLDER.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=_FOLDER.parent) as staging:
        files = Path(staging) / "files"
        files.mkdir()
        _extract(_download(Path(staging)), files)
        files.rename(_FOLDER)


def _download(target: Path) -> Path:
    """The source distribution, got with pip, so that the user's index and its digests hold.

    pip also prepares its metadata, for which it fetches what building needs; installing it has needed the same.
    """
    options = ["--quiet", "--no-deps", f"--no-binary={_PACKAGE}", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={target}", f"{_PACKAGE}=={_VERSION}"]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"pip cannot fetch the source of {_PACKAGE} {_VERSION}: see its lines above and `pip config list`")
    return next(target.glob("*.tar.gz"))


def _extract(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            match = _MEMBER.fullmatch(member.name)
            source = tar.extractfile(member) if match else None
            if match and source:
                (target / match[1]).write_bytes(source.read())


if __name__ == "__main__":
    fetch()
