"""Qwen2, Qwen3, Gemma 2 and Gemma 3 at the levels that ask nothing of the architecture: all but weights and layers.

Tiny random checkpoints (other_architectures.py) and what llama.cpp's own converter makes of them.
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client.worker import ServedWorker
from parity import corpus, neighbours
from parity.bounds import Bounds
from parity.case import gather, plan_windows
from parity.corpus import HardText
from parity.evidence import SHORT, Candidate, FullLogits
from parity.f32_copy import rewrite
from parity.levels import generation, logits, serving, tokenizer
from parity.levels.serving import Expected
from parity.llama.scoring import Scorer, Setup
from parity.reference.model import Reference
from parity.report import Level
from parity.setups import GELU, opened
from tests.parity.other_architectures import convert, write_gemma2, write_gemma3, write_qwen2, write_qwen3
from tests.parity.small_gguf import read_tensor
from worker.llama.model import Model
from worker.wire.jobs import TokenId

pytestmark = pytest.mark.model

N_CONTINUED = 16
SETUP = Setup(n_rows=64)
"""The set-up that proves the arithmetic. It hands out rows of 151,936 logits a few at a time."""
Weights = Mapping[str, NDArray[np.float32]]


def is_not_composed(text: HardText) -> bool:
    """llama.cpp leaves a text as it is where Qwen2's tokenizer composes it (NFC). And it takes every `</s>` for a
    control token, which in Qwen2's vocabulary is a piece like any other."""
    return not unicodedata.is_normalized("NFC", corpus.decode(text.data)) or b"</s>" in text.data


def is_never(_: HardText) -> bool:
    return False


def without_query_biases(_: Path) -> Weights:
    return {f"blk.{layer}.attn_q.bias": np.zeros(32, np.float32) for layer in range(2)}


def without_norms_of_queries(_: Path) -> Weights:
    return {f"blk.{layer}.attn_q_norm.weight": np.ones(16, np.float32) for layer in range(2)}


def without_one_in_a_norm(gguf: Path) -> Weights:
    """Gemma multiplies by one more than the norm's weight; the converter adds it."""
    name = "blk.1.post_ffw_norm.weight"
    return {name: read_tensor(gguf, name) - np.float32(1)}


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    write: Callable[[Path], None]
    n_tokens: int
    """The tokens of the text; few if a row of logits is long."""
    is_known_to_differ: Callable[[HardText], bool]
    mistake: Callable[[Path], Weights]


ARCHITECTURES = (
    Architecture("qwen2", write_qwen2, SHORT, is_not_composed, without_query_biases),
    Architecture("qwen3", write_qwen3, SHORT, is_not_composed, without_norms_of_queries),
    Architecture("gemma2", lambda folder: write_gemma2(folder, corpus.text()), 512, is_never, without_one_in_a_norm),
    Architecture("gemma3", lambda folder: write_gemma3(folder, corpus.text()), 512, is_never, without_one_in_a_norm),
)


@dataclass(frozen=True, slots=True)
class Made:
    """An architecture's checkpoint, its GGUF, and what the reference says."""

    architecture: Architecture
    gguf: Path
    reference: Reference
    rows: FullLogits


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    architecture: Architecture = request.param
    folder = tmp_path_factory.mktemp(architecture.name)
    architecture.write(folder / "checkpoint")
    convert(folder / "checkpoint", folder / "model.gguf")
    reference = Reference.open(folder / "checkpoint", n_threads=1)
    windows = plan_windows(
        reference, corpus.text(), corpus.prompts()[:2], n_tokens=architecture.n_tokens, n_continued=N_CONTINUED
    )
    (folder / "rows").mkdir()
    return Made(
        architecture,
        folder / "model.gguf",
        reference,
        gather(reference, windows, folder / "rows"),
    )


@pytest.fixture(scope="module")
def model(made: Made) -> Iterator[Model]:
    with opened(made.gguf) as model:
        yield model


@pytest.fixture(scope="module")
def candidate(model: Model, made: Made) -> Iterator[Candidate]:
    with Scorer(model, SETUP, n_ctx=640, n_threads=1) as scorer:
        costs = ("gelu",) if made.architecture.name in GELU else ()
        yield Candidate("F32", "F32", scorer.logits, scorer.greedy, allowed_for=costs)


def tokenized(made: Made, model: Model, texts: list[HardText], bounds: Bounds) -> Level:
    ids = [made.reference.tokenize(corpus.decode(text.data)) for text in texts]
    return tokenizer.run(model.tokenize_bytes, ids, texts, bounds, piece=lambda token: model.piece(TokenId(token)))


def test_tokenizer_level_passes_on_all_that_the_two_tokenizers_define_alike(
    made: Made, model: Model, bounds: Bounds
) -> None:
    texts = [text for text in corpus.hard_texts() if not made.architecture.is_known_to_differ(text)]
    assert len(texts) > len(corpus.hard_texts()) / 2
    level = tokenized(made, model, texts, bounds)
    assert level.verdict == "pass", level.summary


def test_tokenizer_level_finds_what_they_do_not(made: Made, model: Model, bounds: Bounds) -> None:
    level = tokenized(made, model, list(corpus.hard_texts()), bounds)
    known = {text.name for text in corpus.hard_texts() if made.architecture.is_known_to_differ(text)}
    assert level.verdict == ("fail" if known else "pass"), level.summary
    assert {row[0] for row in level.tables[0].rows} <= known


@pytest.mark.parametrize("level", [logits, generation], ids=["logits", "generation"])
def test_logits_and_generation_pass(made: Made, candidate: Candidate, bounds: Bounds, level: Any) -> None:
    found = level.run(made.rows, bounds, file=candidate, f32_copy=replace(candidate, name="F32 copy"))
    assert found.verdict == "pass", found.summary


def test_logits_level_fails_on_a_mistake_of_the_architectures_own(made: Made, tmp_path: Path, bounds: Bounds) -> None:
    wrong = tmp_path / "wrong.gguf"
    mistake = made.architecture.mistake(made.gguf)
    rewrite(made.gguf, wrong, tensors={name: partial(mistake.__getitem__, name) for name in mistake})
    with opened(wrong) as model, Scorer(model, SETUP, n_ctx=640, n_threads=1) as scorer:
        candidate = Candidate("wrong", "F32", scorer.logits, scorer.greedy, allowed_for=("gelu",))
        level = logits.run(made.rows, bounds, file=candidate, f32_copy=candidate)
    assert level.verdict == "fail"
    assert level.summary.startswith("wrong, short windows: largest error of a logit")


@pytest.mark.process
def test_serving_level_passes_with_the_references_continuations(made: Made, model: Model, bounds: Bounds) -> None:
    prompts = list(corpus.prompts()[:1])
    front = [] if made.reference.facts.bos is None else [made.reference.facts.bos]
    tokens = made.reference.greedy([[*front, *made.reference.tokenize(prompt)] for prompt in prompts], N_CONTINUED)
    expected = Expected(tokens, ends=frozenset(int(end) for end in model.ends))
    with ServedWorker.of(
        made.gguf, *neighbours.FLAGS, "--threads", "1", "--ctx-size", "1024", "--device", "cpu"
    ) as worker:
        level, _ = serving.run(worker, prompts, expected, bounds, n_tokens=N_CONTINUED)
    assert level.verdict == "pass", level.summary
