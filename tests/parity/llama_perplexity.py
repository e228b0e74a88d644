"""llama.cpp's own llama-perplexity: built from the source of the installed binding, run, and its figures read; and ours
of the same positions.

The windows have 512 tokens, whose second halves count. The cache types are llama.cpp's defaults.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parity.compare import Summary, compare_full, second_half, summarise
from parity.llama.scoring import Scorer, Setup
from parity.setups import opened

LENGTH = 512
N_THREADS = 2
_AS_THE_TOOL = Setup("f16", "f16", "auto", LENGTH)
"""llama.cpp's defaults."""
Rows = list[NDArray[np.float32]]
_PATIENCE_S = 280.0
_LINGER = "#include <unistd.h>\n__attribute__((destructor)) static void linger(void) { usleep(500000); }\n"
"""The tool logs on a thread and does not wait for it at its end, so that the last lines of a small model, which are the
figures, are lost. With this it stays for half a second, and the thread comes to its end.
Source: common_log_main in llama.cpp's common/log.cpp; llama.cpp issue 22142.
"""


@dataclass(frozen=True)
class Estimate:
    """A line of the tool: a mean and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.6f} ± {self.error:.6f}"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The tool's figures of a file against the base. KL is in nats."""

    kl: Estimate
    perplexity: Estimate
    base_perplexity: Estimate
    ratio: Estimate
    same_top: Estimate
    """The share is in per cent."""


@dataclass(frozen=True)
class Tool:
    """The program; `build` makes it."""

    path: str
    preload: Path

    def write_base(self, f32: Path, text: Path, base: Path) -> None:
        """The log-probabilities of `f32` at all positions, in the tool's 16 bits."""
        self._run("-m", str(f32), "-f", str(text), "--kl-divergence-base", str(base))

    def compare(self, gguf: Path, base: Path) -> Figures:
        """`gguf` against what `write_base` wrote."""
        output = self._run("-m", str(gguf), "--kl-divergence-base", str(base), "--kl-divergence")
        return Figures(
            kl=_estimate(output, "Mean    KLD"),
            perplexity=_estimate(output, "Mean PPL(Q)"),
            base_perplexity=_estimate(output, "Mean PPL(base)"),
            ratio=_estimate(output, "Mean PPL(Q)/PPL(base)"),
            same_top=_estimate(output, "Same top p"),
        )

    def _run(self, *arguments: str) -> str:
        command = [self.path, "-c", str(LENGTH), "-b", str(LENGTH), "-t", str(N_THREADS), *arguments]
        environment = {**os.environ, "LD_PRELOAD": str(self.preload)}
        found = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
        assert found.returncode == 0, found.stderr[-2000:]
        return found.stdout + found.stderr


def build() -> Tool:
    """Build the tool. This takes minutes the first time; then it lies in the user's cache."""
    script = Path(__file__).parents[2] / "scripts" / "build_llama_tool.sh"
    command, environment = [str(script), "llama-perplexity"], {**os.environ, "PYTHON": sys.executable}
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    path = built.stdout.strip()
    preload = Path(path).with_name("linger.so")
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(preload)]
    subprocess.run(compiler, input=_LINGER, text=True, check=True)
    return Tool(path, preload)


def _estimate(output: str, name: str) -> Estimate:
    found = re.search(rf"{re.escape(name)}\s*:\s*([-0-9.]+)\s*±\s*([-0-9.]+)", output)
    assert found is not None, output[-2000:]
    return Estimate(float(found[1]), float(found[2]))


# ── our own figures of the same positions ────────────────────────────────────────────────────────


def windows_of(gguf: Path, text: Path) -> list[list[int]]:
    """The windows as the tool cuts them. If the vocabulary puts a token before a text, each window begins with it."""
    with opened(gguf) as model:
        ids, bare = (
            [int(token) for token in model.tokenize(text.read_text(), add_special=add)] for add in (True, False)
        )
    n_front = len(ids) - len(bare)
    starts = range(0, len(ids) - LENGTH + 1, LENGTH)
    return [[*ids[:n_front], *ids[start + n_front : start + LENGTH]] for start in starts]


def rows_of(gguf: Path, text: Path) -> Rows:
    """Logits [LENGTH, n_vocab] of each window, computed as the tool does."""
    windows = windows_of(gguf, text)
    with opened(gguf) as model, Scorer(model, _AS_THE_TOOL, n_ctx=LENGTH, n_threads=N_THREADS) as scorer:
        return [scorer.logits(window) for window in windows]


def ours(base_rows: Rows, candidate_rows: Rows, windows: list[list[int]]) -> Summary:
    """The figures of the second halves."""
    pairs = zip(base_rows, candidate_rows, windows, strict=True)
    return summarise([second_half(compare_full(one, other, window[1:])) for one, other, window in pairs])
