"""The quantisation matrix: what each file type keeps of the reference with each cache type, its memory and its speed.

Owns the types, the making of a file at a time, the measuring of a pair as `serve` would have it, and the tables. What a
file holds is read from the file. Refuses to know how close a type should come (bounds.toml), and which pair to choose
(choice.py).
"""

import worker.llama  # isort: skip  # noqa: F401 - before numpy, which brings a C++ library that some builds die of
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from parity.bounds import Bounds
from parity.case import Case, Say
from parity.choice import choose, frontier
from parity.compare import Summary, summarise
from parity.estimates import Estimate
from parity.evidence import ReferenceLogits
from parity.llama.quantise import quantise
from parity.llama.scoring import Scorer
from parity.report import Check, Level, Series, Table, judged, not_run
from parity.setups import costs_of, evaluated, served
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo, read_info
from worker.models.loading.load import placed
from worker.models.plan.placement import Placement
from worker.models.upstream.ggml_types import TENSOR_TYPES

NAME = "matrix"
CACHES: Final = {"auto": ("auto", "f16"), "f16": ("f16", "f16"), "q8_0": ("q8_0", "q8_0"), "q4_0": ("q4_0", "q4_0")}
"""The values of `--cache-type-k` and `--cache-type-v` by name. `auto` is the default of `serve`."""
FILE_TYPES = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL")
N_DECODED = 48
"""Tokens of one timed continuation."""
_N_TIMED = 3

NOTE = (
    "Each file is made from the F32 weights of the reference by llama.cpp's quantiser, without an importance matrix, "
    "and computed as serve has it with the same flags. Memory: what serve plans with these. In brackets: 95 % "
    "intervals. Tokens per second: one greedy continuation alone, the median of three after a warm-up; what else this "
    "machine did meanwhile is in it. ◆: nothing that is measured here takes less memory and is as close. →: the choice."
)
_MIXED = (
    "A file type is a mixture: rows that would fit the type and have another were given more bits by the quantiser."
)
_NO_WEIGHTS = (
    "needs weights to quantise: give the checkpoint as --reference, not its logits; of an architecture other than "
    "llama give an F32 GGUF as --model"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A file type and a cache type, measured."""

    file_type: str
    cache: str
    """A key of CACHES."""
    file_bytes: int
    memory_bytes: int
    """Planned for weights, KV cells and compute, on all devices together."""
    bits_per_weight: float
    matrices: tuple[Stored, ...]
    """Most bytes first; vectors, which stay F32, are left out."""
    summary: Summary
    tokens_per_s: float
    costs: tuple[str, ...] = ()
    """The other parts that round, spelled as in the bounds' allowances."""

    @property
    def kl(self) -> Estimate:
        return self.summary.kl_mean

    @property
    def name(self) -> str:
        return self.file_type if self.cache == "auto" else f"{self.file_type}, cache {self.cache}"


def run(
    case: Case,
    settings: Settings,
    bounds: Bounds,
    *,
    say: Say,
    n_tokens: int,
    limit_bytes: int,
    file_types: Sequence[str] = FILE_TYPES,
    caches: Sequence[str] = ("auto",),
) -> tuple[Level, list[Made]]:
    """Make every type from the case's F32 copy, one file at a time, and measure it with every cache type over
    `n_tokens` of the text, as `serve` would have it with these settings."""
    began_s = time.perf_counter()
    if case.f32_copy is None:
        return not_run(NAME, _NO_WEIGHTS), []
    made = [
        each
        for file_type in file_types
        for each in _of_type(case, case.f32_copy, settings, file_type, caches, say=say, n_tokens=n_tokens)
    ]
    level = judged(
        NAME,
        "mean KL: " + ", ".join(f"{each.name} {each.kl.value:.2g}" for each in made),
        list(checks(made, bounds)),
        tables=[table(made, limit_bytes, _ON_A_GRID if case.is_source else ""), contents(made)],
        series=plotted(made),
    )
    return replace(level, seconds=time.perf_counter() - began_s), made


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


def _of_type(
    case: Case,
    f32_copy: Path,
    settings: Settings,
    file_type: str,
    caches: Sequence[str],
    *,
    say: Say,
    n_tokens: int,
) -> Iterator[Made]:
    """Make a file of that type, look at it with each cache type, and remove it."""
    with TemporaryDirectory(dir=case.subject.work, prefix="matrix-") as folder:
        path = Path(folder) / f"{file_type}.gguf"
        say(f"file type {file_type}")
        quantise(f32_copy, path, file_type, n_threads=case.subject.n_threads)
        for cache in caches:
            if len(caches) > 1:
                say(f"file type {file_type}, cache {cache}")
            type_k, type_v = CACHES[cache]
            pair = replace(settings, cache_type_k=type_k, cache_type_v=type_v)
            yield _measured(case, pair, path, n_tokens, file_type=file_type, cache=cache)


def _measured(case: Case, settings: Settings, path: Path, n_tokens: int, *, file_type: str, cache: str) -> Made:
    """The file as serve would have it with these settings."""
    config = configure(settings, path)
    info = read_info(path)
    placement = placed(config, info)
    reference, numbers = case.reference, evaluated(case.reference, n_tokens)
    n_ctx = max(N_DECODED + 1, *(len(reference.windows[number].tokens) for number in numbers))
    with served(config, info, placement, n_ctx=n_ctx, n_threads=case.subject.n_threads) as found:
        summary, rate = closeness_and_rate(found.scorer, reference, numbers)
        costs = costs_of(found.numerics, info.architecture)
    return Made(
        file_type=file_type,
        cache=cache,
        file_bytes=info.file_bytes,
        memory_bytes=_planned(placement),
        bits_per_weight=bits_per_weight(info),
        matrices=matrices(info),
        summary=summary,
        tokens_per_s=rate,
        costs=costs,
    )


def _planned(placement: Placement) -> int:
    return placement.host.total_bytes + sum(part.total_bytes for part in placement.gpus)


def closeness_and_rate(scorer: Scorer, reference: ReferenceLogits, numbers: Sequence[int]) -> tuple[Summary, float]:
    """The closeness of a loaded file to the reference over the windows of these numbers, and its tokens per second."""
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
    """The average over all tensors, including vectors."""
    return 8 * info.weights_bytes / sum(math.prod(tensor.dims) for tensor in info.tensors)


def matrices(info: ModelInfo) -> tuple[Stored, ...]:
    """The actual types in the file, by row length and type."""
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
    """Three numbers of each pair, against the allowance of the file type plus those of its cache and its device."""
    for each in made:
        summary = each.summary
        for what, value, key, note in (
            ("mean KL", summary.kl_mean.value, "kl_mean", summary.kl_mean.text()),
            ("same most probable token", summary.top1.value, "top1", summary.top1.text()),
            (
                "|ln| of the ratio of perplexities",
                summary.perplexity_distance,
                "perplexity",
                summary.perplexity_ratio.text(".5f"),
            ),
        ):
            allowances = [f"logits.allowance.{cost}.{key}" for cost in each.costs]
            name = f"{each.name}: {what}"
            yield bounds.check(name, value, f"matrix.{each.file_type}.{key}", note=note, allowances=allowances)


def table(made: Sequence[Made], limit_bytes: int, remark: str = "") -> Table:
    """A row for each pair, in the order in which they were measured; `remark` goes under it."""
    columns = (
        *("", "type", "cache", ">file, MB", ">bits/weight", ">memory, MiB", ">KL mean", ">KL 99 %", ">top-1"),
        *(">perplexity ratio", ">tokens/s"),
    )
    best, chosen = frontier(made), choose(made, limit_bytes)
    rows = tuple(
        (
            ("→" if each is chosen else "") + ("◆" if each in best else ""),
            each.file_type,
            each.cache,
            f"{each.file_bytes / 1e6:.1f}",
            f"{each.bits_per_weight:.2f}",
            f"{each.memory_bytes / 2**20:.1f}",
            each.kl.text(),
            f"{each.summary.kl_p99.value:.3g}",
            each.summary.top1.text(".2f", 100.0, " %"),
            each.summary.perplexity_ratio.text(".4f"),
            f"{each.tokens_per_s:.0f}",
        )
        for each in made
    )
    return Table("Quantisation matrix", columns, rows, f"{NOTE} {remark}".strip())


def contents(made: Sequence[Made]) -> Table:
    """The types of the matrices in every file, and the rows that cannot have the requested type."""
    files = list({each.file_type: each for each in made}.values())
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
        for each in files
        for stored in each.matrices
    )
    columns = ("type", ">row length", ">matrices", "stored as", ">MB", "such as", "")
    said = filter(None, map(says_fallback, files))
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
    """The mean KL of every pair."""
    values, labels = tuple(each.summary.kl_mean.value for each in made), tuple(each.name for each in made)
    return [Series("matrix-kl", "Mean KL divergence by file type", values, labels, "nats")]


def _is_odd(made: Made, stored: Stored) -> bool:
    return stored.n_columns % _block(made.file_type) != 0


def _block(file_type: str) -> int:
    """Numbers in a block of the tensor type that gives the file type its name: 256 for Q4_K_M."""
    name = file_type.removesuffix("_M")
    return next(kind.block for kind in TENSOR_TYPES.values() if kind.name == name)
