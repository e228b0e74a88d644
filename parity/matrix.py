"""The quantisation matrix: what each file type keeps of the reference, what it weighs, and how fast it decodes.

Owns the types, the making of a file at a time, and the tables. What a file holds is read from the file. Refuses to
know how close a type should come (bounds.toml).
"""

import worker.llama  # isort: skip  # noqa: F401 - before numpy, which brings a C++ library that some builds die of
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from worker.model.ggml_types import TYPES_BY_NAME
from worker.model.gguf import Tensor
from worker.model.info import ModelInfo, read_info
from parity.bounds import Bounds
from parity.case import Case, Say
from parity.compare import Summary, summarise
from parity.evidence import ReferenceLogits
from parity.llama.quantise import quantise
from parity.llama.scoring import Scorer
from parity.report import Check, Level, Series, Table, judged, not_run
from parity.setups import as_served, evaluated, opened

NAME = "matrix"
FILE_TYPES = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL")
N_DECODED = 48
"""Tokens of one timed continuation."""
_N_TIMED = 3

NOTE = (
    "Each file is made from the F32 weights of the reference by llama.cpp's quantiser, without an importance matrix, "
    "and computed as the worker runs it on a CPU: f16 K and V cache, flash attention, chunks of 32 tokens. In "
    "brackets: 95 % intervals. Tokens per second: one greedy continuation alone, the median of three after a warm-up; "
    "what else this machine did meanwhile is in it."
)


_MIXED = (
    "A file type is a mixture: rows that would fit the type and have another were given more bits by the quantiser."
)
_ON_A_GRID = (
    "The reference's weights come from a quantised file, so that they lie on its grid already; what a type makes of "
    "them is not what it makes of weights fresh from training."
)


@dataclass(frozen=True, slots=True)
class Stored:
    """Matrices of one row length that a file holds in one type."""

    n_columns: int
    type_name: str
    n_tensors: int
    n_bytes: int
    example: str
    """The largest tensor's name, the first of equals."""


@dataclass(frozen=True, slots=True)
class Made:
    """One file type, measured."""

    file_type: str
    file_bytes: int
    bits_per_weight: float
    matrices: tuple[Stored, ...]
    """Most bytes first; vectors, which stay F32, are left out."""
    summary: Summary
    tokens_per_s: float


def run(case: Case, bounds: Bounds, *, say: Say, n_tokens: int, file_types: Sequence[str] = FILE_TYPES) -> Level:
    """Make and measure every type from the case's F32 copy, one file at a time, over `n_tokens` of its text."""
    if case.f32_copy is None:
        return not_run(NAME, "needs the reference's weights as a GGUF of the llama architecture")
    made = []
    for file_type in file_types:
        say(f"file type {file_type}")
        made.append(
            measure(
                case.f32_copy,
                file_type,
                case.reference,
                work=case.subject.work,
                n_threads=case.subject.n_threads,
                n_tokens=n_tokens,
            )
        )
    return judged(
        NAME,
        "mean KL: " + ", ".join(f"{each.file_type} {each.summary.kl_mean.value:.2g}" for each in made),
        list(checks(made, bounds)),
        tables=[table(made, _ON_A_GRID if case.is_source else ""), contents(made)],
        series=plotted(made),
    )


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


def measure(
    f32_copy: Path, file_type: str, reference: ReferenceLogits, *, work: Path, n_threads: int, n_tokens: int
) -> Made:
    """Make a file of that type, look at it, and remove it."""
    numbers = evaluated(reference, n_tokens)
    n_ctx = max(N_DECODED + 1, *(len(reference.windows[number].tokens) for number in numbers))
    with TemporaryDirectory(dir=work, prefix="matrix-") as folder:
        path = Path(folder) / f"{file_type}.gguf"
        quantise(f32_copy, path, file_type, n_threads=n_threads)
        info = read_info(path)
        with (
            opened(path) as model,
            Scorer(model, as_served(), n_ctx=n_ctx, n_threads=n_threads) as scorer,
        ):
            summary, tokens_per_s = closeness_and_rate(scorer, reference, numbers)
    return Made(file_type, info.file_bytes, bits_per_weight(info), matrices(info), summary, tokens_per_s)


def closeness_and_rate(scorer: Scorer, reference: ReferenceLogits, numbers: Sequence[int]) -> tuple[Summary, float]:
    """How close a loaded file is to the reference over the windows of these numbers, and its tokens per second."""
    windows = [reference.positions(number, scorer.logits(reference.windows[number].tokens)) for number in numbers]
    return summarise(windows), _decode_rate(scorer, reference.windows[numbers[0]].tokens[:1])


def _decode_rate(scorer: Scorer, prompt: Sequence[int]) -> float:
    """Tokens per second of a greedy continuation of a prompt of one token."""
    scorer.greedy(prompt, N_DECODED)
    times_s = []
    for _ in range(_N_TIMED):
        began_s = time.perf_counter()
        scorer.greedy(prompt, N_DECODED)
        times_s.append(time.perf_counter() - began_s)
    return N_DECODED / statistics.median(times_s)


def bits_per_weight(info: ModelInfo) -> float:
    """Over all tensors, vectors among them."""
    return 8 * info.weights_bytes / sum(math.prod(tensor.dims) for tensor in info.tensors)


def matrices(info: ModelInfo) -> tuple[Stored, ...]:
    """What the file really holds, by row length and type."""
    groups: dict[tuple[int, str], list[Tensor]] = {}
    for tensor in info.tensors:
        if len(tensor.dims) > 1:
            groups.setdefault((tensor.dims[0], tensor.type_name), []).append(tensor)
    stored = [_stored(group) for group in groups.values()]
    return tuple(sorted(stored, key=lambda each: -each.n_bytes))


def _stored(group: Sequence[Tensor]) -> Stored:
    largest = max(group, key=lambda tensor: tensor.n_bytes)
    n_bytes = sum(tensor.n_bytes for tensor in group)
    return Stored(largest.dims[0], largest.type_name, len(group), n_bytes, largest.name)


# ── judging and showing ──────────────────────────────────────────────────────────────────────────


def checks(made: Iterable[Made], bounds: Bounds) -> Iterator[Check]:
    """Three numbers of each type."""
    for each in made:
        summary, key = each.summary, f"matrix.{each.file_type}"
        ratio = summary.perplexity_ratio
        kl, top1 = summary.kl_mean, summary.top1
        yield bounds.check(f"{each.file_type}: mean KL", kl.value, f"{key}.kl_mean", note=kl.text())
        yield bounds.check(f"{each.file_type}: same most probable token", top1.value, f"{key}.top1", note=top1.text())
        what = f"{each.file_type}: |ln| of the ratio of perplexities"
        yield bounds.check(what, summary.perplexity_distance, f"{key}.perplexity", note=ratio.text(".5f"))


def table(made: Iterable[Made], remark: str = "") -> Table:
    """A row for each type; `remark` goes under it."""
    columns = ("type", ">MB", ">bits/weight", ">KL mean", ">KL 99 %", ">top-1", ">perplexity ratio", ">tokens/s")
    rows = tuple(
        (
            each.file_type,
            f"{each.file_bytes / 1e6:.1f}",
            f"{each.bits_per_weight:.2f}",
            each.summary.kl_mean.text(),
            f"{each.summary.kl_p99.value:.3g}",
            each.summary.top1.text(".2f", 100.0, " %"),
            each.summary.perplexity_ratio.text(".4f"),
            f"{each.tokens_per_s:.0f}",
        )
        for each in made
    )
    return Table("Quantisation matrix", columns, rows, f"{NOTE} {remark}".strip())


def contents(made: Sequence[Made]) -> Table:
    """Which type the matrices of every file have, and for which rows the type that was asked for was no choice."""
    rows = tuple(
        (
            each.file_type,
            str(stored.n_columns),
            str(stored.n_tensors),
            stored.type_name,
            f"{stored.n_bytes / 1e6:.1f}",
            stored.example,
            f"no multiple of {_block(each.file_type)}" if _is_odd(each, stored) else "",
        )
        for each in made
        for stored in each.matrices
    )
    columns = ("type", ">row length", ">matrices", "stored as", ">MB", "such as", "")
    said = filter(None, map(says_fallback, made))
    return Table("What the files hold", columns, rows, " ".join((*said, _MIXED)))


def says_fallback(made: Made) -> str:
    """One sentence where rows are no multiple of the type's block; empty where all are."""
    odd = [stored for stored in made.matrices if _is_odd(made, stored)]
    if not odd:
        return ""
    n_odd, n_all = (sum(stored.n_tensors for stored in each) for each in (odd, made.matrices))
    lengths = " and ".join(str(length) for length in sorted({stored.n_columns for stored in odd}))
    used = ", ".join(f"{stored.type_name} ({stored.n_tensors})" for stored in odd)
    why = f"have rows of {lengths}, no multiple of {_block(made.file_type)}"
    return f"{made.file_type}: {n_odd} of {n_all} matrices {why}, and are stored as {used} instead."


def plotted(made: Sequence[Made]) -> list[Series]:
    """The mean KL of every type."""
    values, labels = tuple(each.summary.kl_mean.value for each in made), tuple(each.file_type for each in made)
    return [Series("matrix-kl", "Mean KL divergence by file type", values, labels, "nats")]


def _is_odd(made: Made, stored: Stored) -> bool:
    return stored.n_columns % _block(made.file_type) != 0


def _block(file_type: str) -> int:
    """Numbers in a block of the tensor type that gives the file type its name: 256 for Q4_K_M."""
    return TYPES_BY_NAME[file_type.removesuffix("_M")].block
