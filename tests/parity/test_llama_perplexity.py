"""Our KL divergence and perplexity against those of llama.cpp's own llama-perplexity: same files, same definition.

Windows of 512 tokens, of each the second half. The tool keeps the base's log-probabilities in 16 bits; what that costs
is measured here, too. `make parity-peer` builds the tool and runs this; nothing else does.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from worker.parity import corpus
from worker.parity.compare import Summary, compare_full, second_half, summarise
from worker.parity.llama.quantise import quantise
from worker.parity.llama.scoring import Scorer, Setup
from worker.parity.setups import opened

pytestmark = [pytest.mark.model, pytest.mark.peer]

LENGTH = 512
THREADS = "2"
AS_THE_TOOL = Setup("f16", "f16", "auto", LENGTH)
"""llama.cpp's defaults."""

Rows = list[NDArray[np.float32]]


@dataclass(frozen=True)
class Told:
    """A line of the tool: a mean and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.6f} ± {self.error:.6f}"


@pytest.fixture(scope="module")
def tool() -> str:
    script = Path(__file__).parents[2] / "scripts" / "build_llama_tool.sh"
    command, environment = [str(script), "llama-perplexity"], {**os.environ, "PYTHON": sys.executable}
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return built.stdout.strip()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(corpus.text().rstrip("\n"))
    return path


@pytest.fixture(scope="module")
def base(tool: str, f32_copy: Path, text: Path) -> Path:
    """The F32 weights' log-probabilities, as the tool stores them."""
    path = text.with_name("base.kld")
    run(tool, "-m", str(f32_copy), "-f", str(text), "--kl-divergence-base", str(path))
    return path


@pytest.fixture(scope="module")
def base_rows(f32_copy: Path, text: Path) -> Rows:
    return rows_of(f32_copy, text)


def run(tool: str, *arguments: str) -> str:
    command = [tool, "-c", str(LENGTH), "-b", str(LENGTH), "-t", THREADS, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout + found.stderr


def told(output: str, name: str) -> Told:
    found = re.search(rf"{re.escape(name)}\s*:\s*([-0-9.]+)\s*±\s*([-0-9.]+)", output)
    assert found is not None, output[-2000:]
    return Told(float(found[1]), float(found[2]))


def windows_of(gguf: Path, text: Path) -> list[list[int]]:
    with opened(gguf) as model:
        ids = [int(token) for token in model.tokenize(text.read_text())]
    return [ids[start : start + LENGTH] for start in range(0, len(ids) - LENGTH + 1, LENGTH)]


def rows_of(gguf: Path, text: Path) -> Rows:
    windows = windows_of(gguf, text)
    with opened(gguf) as model, Scorer(model, AS_THE_TOOL, n_ctx=LENGTH, n_threads=int(THREADS)) as scorer:
        return [scorer.logits(window) for window in windows]


def stored(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """A row of log-probabilities after the tool's 16 bits: steps of at most 16 nats / 65535, nothing below -16 nats of
    the highest."""
    highest = float(row.max())
    lowest = max(float(row.min()), highest - 16.0)
    step = (highest - lowest) / 65535.0
    levels = np.rint(np.clip(row - lowest, 0.0, None) / step)
    total = np.log(np.exp(row.astype(np.float64) - highest).sum())
    return np.asarray(levels * step + lowest - highest - total, dtype=np.float64)


def kl_of_stored(base: NDArray[np.float32], candidate: NDArray[np.float32]) -> float:
    """As the tool adds it up: over the tokens above -16 nats, with what 16 bits left of them."""
    log_p = stored(base)
    shifted = candidate.astype(np.float64) - candidate.max()
    log_q = shifted - np.log(np.exp(shifted).sum())
    counted = log_p > -16.0
    return float((np.exp(log_p[counted]) * (log_p[counted] - log_q[counted])).sum())


def ours(base_rows: Rows, candidate_rows: Rows, windows: list[list[int]]) -> Summary:
    pairs = zip(base_rows, candidate_rows, windows, strict=True)
    return summarise([second_half(compare_full(one, other, window[1:])) for one, other, window in pairs])


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_1"])
def test_kl_and_perplexity_are_those_of_llama_perplexity(
    *, tool: str, f32_copy: Path, text: Path, base: Path, base_rows: Rows, file_type: str, tmp_path: Path
) -> None:
    gguf = tmp_path / f"{file_type}.gguf"
    quantise(f32_copy, gguf, file_type, n_threads=int(THREADS))
    output = run(tool, "-m", str(gguf), "--kl-divergence-base", str(base), "--kl-divergence")
    candidate_rows = rows_of(gguf, text)
    found = ours(base_rows, candidate_rows, windows_of(gguf, text))
    pairs = [pair for both in zip(base_rows, candidate_rows, strict=True) for pair in list(zip(*both, strict=True))]
    counted = [pair for number, pair in enumerate(pairs) if LENGTH // 2 <= number % LENGTH < LENGTH - 1]
    in_16_bits = float(np.mean([kl_of_stored(*pair) for pair in counted]))
    sys.stdout.write(
        f"\n{file_type}, {len(counted)} positions:"
        f"\n  KL          llama-perplexity {told(output, 'Mean    KLD')}, ours {found.kl_mean.value:.6f},"
        f" ours with its 16 bits {in_16_bits:.6f}"
        f"\n  perplexity  llama-perplexity {told(output, 'Mean PPL(Q)')}, ours {found.perplexity.value:.6f}"
        f"\n  ratio       llama-perplexity {told(output, 'Mean PPL(Q)/PPL(base)')},"
        f" ours {found.perplexity_ratio.value:.6f}\n"
    )
    for name, value in (
        ("Mean    KLD", found.kl_mean.value),
        ("Mean PPL(Q)", found.perplexity.value),
        ("Mean PPL(base)", found.reference_perplexity.value),
        ("Mean PPL(Q)/PPL(base)", found.perplexity_ratio.value),
    ):
        theirs = told(output, name)
        assert abs(value - theirs.value) <= theirs.error, (name, value, theirs)
    assert abs(in_16_bits - told(output, "Mean    KLD").value) < 1e-5
