"""Trained models, as publishers publish them: bfloat16 in shards with a tokenizer of their own, and the GGUFs that
llama.cpp's converter and quantiser make of them.

A Llama with RoPE scaled as in Llama 3 and a Gemma 3 (tools/trained_model.py). `make test` trains them for a moment, so
that every level is gone through; `make originals` trains them for minutes, compares with llama-perplexity, and prints
what quantisation cost the originals.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from parity import corpus
from parity.bounds import Bounds
from parity.case import from_checkpoint
from parity.compare import summarise
from parity.llama.quantise import quantise
from parity.llama.scoring import Scorer
from parity.references import Subject
from parity.report import LEVELS
from parity.run import Run
from parity.setups import as_served, opened
from tests.parity.llama_perplexity import LENGTH, N_THREADS, build, ours, rows_of, windows_of
from tools.markdown import table
from tools.trained_model import Trained, train
from worker.config.settings import Settings

pytestmark = [pytest.mark.model, pytest.mark.torch, pytest.mark.timeout(1800)]

FILE_TYPES = ("Q8_0", "Q4_K_M", "Q4_0", "IQ4_NL")
LAYERED = {"llama": "pass", "gemma3": "not run"}
"""The levels weights and checkpoints, which are of the llama architecture."""


@dataclass(frozen=True, slots=True)
class Original:
    """A trained model and how much of it is looked at."""

    shape: str
    made: Trained
    n_tokens: int
    n_threads: int


BRIEFLY = [pytest.param((shape, 8, 512, 1), id=f"{shape}-briefly") for shape in LAYERED]
TRAINED = [pytest.param((shape, 1500, 4096, 2), id=shape, marks=pytest.mark.originals) for shape in LAYERED]


@pytest.fixture(scope="module", params=[*BRIEFLY, *TRAINED])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    shape, n_steps, n_tokens, n_threads = request.param
    made = train(shape, tmp_path_factory.mktemp(shape), n_steps=n_steps, say=say)
    return Original(shape, made, n_tokens, n_threads)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@pytest.fixture(scope="module")
def run(original: Original, bounds: Bounds, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The levels that `parity run --model GGUF --reference CHECKPOINT` judges, with the GGUF in F32."""
    made, n_threads = original.made, original.n_threads
    subject = Subject.of(made.gguf, n_threads=n_threads, work=tmp_path_factory.mktemp("work"))
    case = from_checkpoint(subject, made.checkpoint, original.shape, n_tokens=original.n_tokens, say=say)
    return Run(case, bounds, Settings(model=str(made.gguf), threads=n_threads, device="cpu"))


def test_the_gguf_is_the_checkpoint_at_every_level(original: Original, run: Run) -> None:
    """F32: the arithmetic alone. The serving level, which starts a worker, is left to longer training."""
    names = [name for name in LEVELS if name != "serving" or original.n_tokens > LENGTH]
    levels = [level for level in run.levels(names, say) if level.name in names]
    for level in levels:
        sys.stdout.write(f"{original.shape}: {level.name}: {level.verdict}: {level.summary}\n")
    layered = LAYERED[original.shape]
    expected = [layered if name in {"weights", "checkpoints"} else "pass" for name in names]
    assert [level.verdict for level in levels] == expected


MAX_KL = {"Q8_0": 0.012, "Q4_K_M": 0.15, "Q4_0": 0.8, "IQ4_NL": 0.5}
"""The mean KL that a type may cost, in nats. The bounds were set on another model, the default one."""


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_what_the_quantiser_makes_is_within_the_bounds_of_its_type(
    original: Original, run: Run, file_type: str, tmp_path: Path
) -> None:
    reference, f32_copy = run.case.reference, run.case.f32_copy
    assert f32_copy is not None
    gguf = tmp_path / f"{file_type}.gguf"
    quantise(f32_copy, gguf, file_type, n_threads=original.n_threads)
    with opened(gguf) as model, Scorer(model, as_served(), n_ctx=LENGTH + 1, n_threads=original.n_threads) as scorer:
        windows = [
            reference.positions(number, scorer.logits(window.tokens))
            for number, window in enumerate(reference.windows)
            if window.kind == "long"
        ]
    found = summarise(windows)
    sys.stdout.write(f"{original.shape}, loss {original.made.loss:.2f}, {file_type}: {found.rows()}\n")
    assert found.kl_mean.value <= MAX_KL[file_type]


@pytest.mark.parametrize("original", TRAINED, indirect=True)
def test_kl_and_perplexity_are_those_of_llama_perplexity(original: Original, tmp_path: Path) -> None:
    """Both beside the F32 GGUF, at the same positions with the same cache types."""
    tool, f32 = build(), original.made.gguf
    text, base = tmp_path / "text", tmp_path / "base"
    text.write_text(corpus.text().rstrip("\n"))
    tool.write_base(f32, text, base)
    base_rows, windows = rows_of(f32, text), windows_of(f32, text)
    rows: list[tuple[str, ...]] = []
    for file_type in FILE_TYPES:
        gguf = tmp_path / f"{file_type}.gguf"
        quantise(f32, gguf, file_type, n_threads=N_THREADS)
        theirs, found = tool.compare(gguf, base), ours(base_rows, rows_of(gguf, text), windows)
        pairs = (
            (theirs.kl, found.kl_mean.value),
            (theirs.perplexity, found.perplexity.value),
            (theirs.same_top, 100.0 * found.top1.value),
        )
        rows.append((file_type, *(cell for reported, value in pairs for cell in (str(reported), f"{value:.6f}"))))
        for reported, value in pairs:
            assert abs(value - reported.value) <= reported.error, (file_type, value, reported)
    columns = ("type", ">KL: theirs", ">ours", ">perplexity: theirs", ">ours", ">same top in %: theirs", ">ours")
    sys.stdout.write(f"\n{original.shape}, beside the F32 GGUF\n\n{table(columns, rows)}\n")
