"""Our KL divergence and perplexity against those of llama.cpp's own llama-perplexity: same files, same definition.

Windows of 512 tokens, of each the second half. The tool keeps the base's log-probabilities in 16 bits; what that costs
is measured here, too. `make parity-peer` builds the tool and runs this; nothing else does.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parity import corpus
from parity.llama.quantise import quantise
from tests.parity.llama_perplexity import LENGTH, N_THREADS, Rows, Tool, build, ours, rows_of, windows_of
from worker.llama.invariance import has_own_products

pytestmark = [pytest.mark.model, pytest.mark.peer]


@pytest.fixture(scope="module")
def tool() -> Tool:
    return build()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(corpus.text().rstrip("\n"))
    return path


@pytest.fixture(scope="module")
def base(tool: Tool, f32_copy: Path, text: Path) -> Path:
    """The F32 weights' log-probabilities, as the tool stores them."""
    path = text.with_name("base.kld")
    tool.write_base(f32_copy, text, path)
    return path


@pytest.fixture(scope="module")
def base_rows(f32_copy: Path, text: Path) -> Rows:
    return rows_of(f32_copy, text)


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
    """The sum as the tool makes it: over the tokens above -16 nats, rounded to 16 bits."""
    log_p = stored(base)
    shifted = candidate.astype(np.float64) - candidate.max()
    log_q = shifted - np.log(np.exp(shifted).sum())
    counted = log_p > -16.0
    return float((np.exp(log_p[counted]) * (log_p[counted] - log_q[counted])).sum())


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_1"])
def test_kl_and_perplexity_are_those_of_llama_perplexity(
    *, tool: Tool, f32_copy: Path, text: Path, base: Path, base_rows: Rows, file_type: str, tmp_path: Path
) -> None:
    gguf = tmp_path / f"{file_type}.gguf"
    quantise(f32_copy, gguf, file_type, n_threads=N_THREADS)
    theirs = tool.compare(gguf, base)
    candidate_rows = rows_of(gguf, text)
    found = ours(base_rows, candidate_rows, windows_of(gguf, text))
    pairs = [pair for both in zip(base_rows, candidate_rows, strict=True) for pair in list(zip(*both, strict=True))]
    counted = [pair for number, pair in enumerate(pairs) if LENGTH // 2 <= number % LENGTH < LENGTH - 1]
    in_16_bits = float(np.mean([kl_of_stored(*pair) for pair in counted]))
    sys.stdout.write(
        f"\n{file_type}, {len(counted)} positions:"
        f"\n  KL          llama-perplexity {theirs.kl}, ours {found.kl_mean.value:.6f},"
        f" ours with its 16 bits {in_16_bits:.6f}"
        f"\n  perplexity  llama-perplexity {theirs.perplexity}, ours {found.perplexity.value:.6f}"
        f"\n  ratio       llama-perplexity {theirs.ratio}, ours {found.perplexity_ratio.value:.6f}\n"
    )
    for reported, value in (
        (theirs.kl, found.kl_mean.value),
        (theirs.perplexity, found.perplexity.value),
        (theirs.base_perplexity, found.reference_perplexity.value),
        (theirs.ratio, found.perplexity_ratio.value),
    ):
        assert abs(value - reported.value) <= reported.error, (value, reported)
    # The same rows would give equal figures. The tool has ggml's products; ours round otherwise, as any two do.
    assert abs(in_16_bits - theirs.kl.value) < (0.02 * theirs.kl.value if has_own_products() else 1e-5)
