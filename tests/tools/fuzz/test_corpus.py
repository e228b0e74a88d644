"""The inputs that the fuzzer has found, and the good ones that it began with, are tried again at every run."""

from pathlib import Path

import pytest

from tools.fuzz.corpus import FOLDER, keep, kept
from tools.fuzz.targets import TARGETS, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_keeps_the_law_of_its_parser(name: str) -> None:
    inputs = kept(name)
    assert len(inputs) > 3
    for each in (b"", *seeds(name), *inputs):
        TARGETS[name](each)


def test_every_corpus_has_a_parser() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(TARGETS)


def test_what_is_kept_is_found_again_each_once(tmp_path: Path) -> None:
    keep("x", [b"bb", b"", b"a\n", b"bb", bytes(range(256))], tmp_path)
    assert kept("x", tmp_path) == [b"", b"a\n", b"bb", bytes(range(256))]
    assert kept("nothing", tmp_path) == []
