"""The check of a vocabulary says what the library does, which loads what is served, and fails over what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.llama.odd_vocabularies import GAPPED, REFUSED, SERVED, Keys
from tests.llama.tiny import write_tiny

LOADED = """
import sys
from llama_cpp import llama_cpp as capi
params = capi.llama_model_default_params()
params.vocab_only = True
model = capi.llama_model_load_from_file(sys.argv[1].encode(), params)
if not model:
    sys.exit(3)
vocab, text = capi.llama_model_get_vocab(model), b"a  a"
room = (capi.llama_token * 100)()
print("loaded", capi.llama_tokenize(vocab, text, len(text), room, 100, False, True))
"""


def is_survived(vocabulary: Keys, folder: Path) -> bool:
    path = write_tiny(folder / "m.gguf", own_vocabulary=vocabulary)
    done = subprocess.run([sys.executable, "-c", LOADED, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3) or done.returncode < 0, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("kind", REFUSED)
def test_the_library_cannot_take_what_is_refused(kind: str, tmp_path: Path) -> None:
    assert not is_survived(REFUSED[kind][0], tmp_path)


@pytest.mark.parametrize("kind", SERVED)
def test_the_library_takes_what_is_served(kind: str, tmp_path: Path) -> None:
    assert is_survived(SERVED[kind][0], tmp_path)


@pytest.mark.parametrize("kind", ["SentencePiece without a space"])
def test_gaps_are_what_crashes_the_library(kind: str, tmp_path: Path) -> None:
    assert not is_survived(GAPPED[kind], tmp_path)
