"""Which quantisation and which cache type to serve a model with on this machine: measured pairs, and a choice.

Owns the measuring of a pair as `serve` would have it, the choice under a limit of memory, and the table. Refuses to
know how a plot is drawn (plot.py) and how far from the reference is too far, which is the user's to say.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from worker.config.settings import Settings
from worker.errors import UsageError
from worker.front.client import configure
from worker.llama.load import placed
from worker.llama.placement import Placement
from worker.model.info import read_info
from parity.case import Case
from parity.estimates import Estimate
from parity.llama.quantise import quantise
from parity.matrix import closeness_and_rate
from parity.report import Table
from parity.setups import evaluated, served

CACHES: Final = {"auto": ("auto", "f16"), "f16": ("f16", "f16"), "q8_0": ("q8_0", "q8_0"), "q4_0": ("q4_0", "q4_0")}
"""What is asked for → `--cache-type-k` and `--cache-type-v`. `auto` is what `serve` does without flags."""

COLUMNS = ("", "type", "cache", ">file, MiB", ">memory, MiB", ">KL mean", ">top-1", ">tokens/s")
_NOTE = (
    "Memory: what serve plans with these settings. KL in nats, with its 95 % interval. Tokens per second: one greedy "
    "continuation alone. ◆: nothing that is measured here takes less memory and is as close. →: the choice."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A file type and a cache type, measured."""

    file_type: str
    cache: str
    """A key of CACHES."""
    file_bytes: int
    memory_bytes: int
    """Planned for weights, KV cells and compute, on all devices together."""
    kl: Estimate
    top1: Estimate
    tokens_per_s: float


def measure(
    case: Case,
    settings: Settings,
    file_types: Sequence[str],
    caches: Sequence[str],
    *,
    n_tokens: int,
    say: Callable[[str], None],
) -> Iterator[Option]:
    """Every pair, one file at a time, over `n_tokens` of the case's text. The files are made in its work folder.

    Raises: UsageError where the reference's weights are not known as a GGUF.
    """
    if case.f32_copy is None:
        raise UsageError(
            "advice needs weights to quantise: give the checkpoint as --reference, not its logits; of an architecture"
            " other than llama give an F32 GGUF as --model"
        )
    for file_type in file_types:
        with TemporaryDirectory(dir=case.subject.work, prefix="advice-") as folder:
            path = Path(folder) / f"{file_type}.gguf"
            say(f"file type {file_type}")
            quantise(case.f32_copy, path, file_type, n_threads=case.subject.n_threads)
            for cache in caches:
                say(f"file type {file_type}, cache {cache}")
                type_k, type_v = CACHES[cache]
                pair = replace(settings, cache_type_k=type_k, cache_type_v=type_v)
                yield _measured(case, pair, path, n_tokens, file_type=file_type, cache=cache)


def _measured(case: Case, settings: Settings, path: Path, n_tokens: int, *, file_type: str, cache: str) -> Option:
    """The file as serve would have it with these settings."""
    config = configure(settings, path)
    info = read_info(path)
    placement = placed(config, info)
    reference, numbers = case.reference, evaluated(case.reference, n_tokens)
    n_ctx = max(len(reference.windows[number].tokens) for number in numbers)
    with served(config, info, placement, n_ctx=n_ctx, n_threads=case.subject.n_threads) as found:
        summary, rate = closeness_and_rate(found.scorer, reference, numbers)
    return Option(
        file_type=file_type,
        cache=cache,
        file_bytes=info.file_bytes,
        memory_bytes=_planned(placement),
        kl=summary.kl_mean,
        top1=summary.top1,
        tokens_per_s=rate,
    )


def _planned(placement: Placement) -> int:
    return placement.host.total_bytes + sum(part.total_bytes for part in placement.gpus)


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


def choose(options: Sequence[Option], limit_bytes: int) -> Option | None:
    """The option within the limit that is closest to the reference. If several cannot be told apart, because none is
    surely closer than they are, it is the fastest of these. None if no option is within the limit."""
    within = [option for option in options if option.memory_bytes <= limit_bytes]
    if not within:
        return None
    surely = min(option.kl.high for option in within)
    as_close = [option for option in within if option.kl.low <= surely]
    return max(as_close, key=lambda option: option.tokens_per_s)


def frontier(options: Sequence[Option]) -> list[Option]:
    """Those beside which no other takes less memory and is as close, or as much and is closer."""

    def is_beaten(option: Option) -> bool:
        mine = (option.memory_bytes, option.kl.value)
        others = ((other.memory_bytes, other.kl.value) for other in options)
        return any(memory <= mine[0] and kl <= mine[1] and (memory, kl) != mine for memory, kl in others)

    return [option for option in options if not is_beaten(option)]


def table(options: Sequence[Option], chosen: Option | None) -> Table:
    """In the order in which they were measured."""
    best = frontier(options)
    rows = tuple(
        (
            ("→" if option == chosen else "") + ("◆" if option in best else ""),
            option.file_type,
            option.cache,
            f"{option.file_bytes / 2**20:.1f}",
            f"{option.memory_bytes / 2**20:.1f}",
            option.kl.text(),
            option.top1.text(".2f", 100.0, " %"),
            f"{option.tokens_per_s:.0f}",
        )
        for option in options
    )
    return Table("Advice", COLUMNS, rows, _NOTE)
