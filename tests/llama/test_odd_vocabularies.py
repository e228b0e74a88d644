"""No text ends the process, whatever the vocabulary lacks: it becomes tokens that say all of it, or is refused.

The check of a vocabulary says what the library does, which loads what is served, and fails over what is refused.
"""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.llama.odd_vocabularies import GAPPED, REFUSED, SERVED, Keys
from tests.llama.tiny import write_tiny
from worker.models.facts.info import read_info
from worker.models.facts.spelling import is_invisible

ALONE = """
import json, sys
from pathlib import Path
from worker.llama.devices import devices
from worker.models.plan.devices import choose_device
from worker.llama.model import Model
from worker.models.facts.spelling import Unspellable
from worker.models.facts.info import read_info

def read(text, parse_special):
    try:
        tokens = model.tokenize(text, add_special=False, parse_special=parse_special)
    except Unspellable as error:
        return str(error)
    return [tokens, model.detokenize(tokens).decode(errors="replace")]

with Model.load(Path(sys.argv[1]), device=choose_device("cpu", devices()), n_gpu_layers=0,
                on_progress=lambda _: None, gaps=read_info(Path(sys.argv[1])).gaps) as model:
    for line in sys.stdin:
        text = json.loads(line)
        spelled = [token for token in model.spell(text.encode()) if token >= 0]
        print(json.dumps([read(text, True), read(text, False), spelled, model.token_of(text)]), flush=True)
"""
"""A process of its own, because an abort must be one vocabulary's failure and not the end of all tests."""

TEXTS = [
    *("", " ", "a", "b", "ab", "a b", "aé b", "é", "z", "az", "\n", "a\n", "\0", "a\x04b", "ac", "aaaa z"),
    *("😀", "a😀z", "<s>", "<s>z", "<unk>", "<x>a<x>", "▁", "a" * 3000, "z" * 3000, "\U0010ffff", "\U00050000b"),
    *("".join(random.Random(seed).choices("ab é😀z\u4e2d\x04<s>", k=40)) for seed in range(40)),
]
REFUSAL = re.compile(
    r"the vocabulary has no token for U\+([0-9A-F]{4,6}), (?:which it puts before a text \()?at position (\d+)\)?"
)


def answers(path: Path) -> list[Any]:
    lines = "".join(json.dumps(text) + "\n" for text in TEXTS)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], input=lines, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (len(done.stdout.splitlines()), done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", GAPPED)
def test_a_text_becomes_tokens_that_say_it_or_is_refused(kind: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", own_vocabulary=GAPPED[kind])
    n_refused, n_read = 0, 0
    for text, (*readings, _, _) in zip(TEXTS, answers(path), strict=True):
        for reading in readings:
            if isinstance(reading, str):
                n_refused += 1
                check_refusal(text, reading)
            else:
                n_read += 1
                tokens, said = reading
                assert min(tokens, default=0) >= 0
                if "WordPiece" not in kind:
                    assert visible(said) == visible(text)
    assert n_refused
    assert n_read


def check_refusal(text: str, line: str) -> None:
    match = REFUSAL.fullmatch(line)
    assert match, line
    character, place = chr(int(match[1], 16)), int(match[2])
    assert character == (" " if "puts before" in line else text[place])


def visible(text: str) -> str:
    """Less what a reader does not see, and spaces, which SentencePiece adds and spells otherwise."""
    return "".join(character for character in text if not is_invisible(character) and character not in " ▁")


def test_a_whole_vocabulary_refuses_nothing(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    assert read_info(path).vocabulary_remarks == ()
    for text, (*readings, _, _) in zip(TEXTS, answers(path), strict=True):
        for tokens, said in readings:
            assert min(tokens, default=0) >= 0
            assert visible(said) == visible(text)


# ── what the library takes ───────────────────────────────────────────────────────────────────────

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


TAKEN = {name: (keys, True) for name, (keys, _) in SERVED.items()}
LEFT = {name: (keys, False) for name, (keys, _) in REFUSED.items()}
CRASHING = {name: (GAPPED[name], False) for name in ("SentencePiece without a space",)}


@pytest.mark.parametrize(("keys", "is_taken"), (TAKEN | LEFT | CRASHING).values(), ids=TAKEN | LEFT | CRASHING)
def test_the_library_takes_what_is_served_and_cannot_take_what_is_refused_or_has_gaps(
    keys: Keys, tmp_path: Path, *, is_taken: bool
) -> None:
    path = write_tiny(tmp_path / "m.gguf", own_vocabulary=keys)
    done = subprocess.run([sys.executable, "-c", LOADED, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3) or done.returncode < 0, done.stderr
    assert (done.returncode == 0) == is_taken
