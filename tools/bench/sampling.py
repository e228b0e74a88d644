"""`python -m tools.bench sampling`: what drawing a token costs, next to llama.cpp's chains on the same rows of logits.

Loads llama.cpp in this process. Never downloads.

A model's rows are sampled by llama_sampler_sample where they lie. For synthetic rows there is no context; a chain's
candidates are then filled by numpy, and what Python adds is taken off. That still makes a greedy token of theirs about
a tenth dearer than llama_sampler_sample's, and the worst case by 2 % (49,152 tokens). All caches are warm: right after
a decode, which leaves nothing of either in them, both take some 25 µs more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import rich_click as click
from msgspec.structs import replace

from tools.bench.llama import chain
from tools.bench.llama.chain import Chain, Logits, Stage
from tools.bench.measures import check
from worker.commands.places import not_here, where
from worker.commands.tables import print_table
from worker.engine.sampling.sample import candidates, log_probabilities, sample
from worker.engine.step import Slice
from worker.host import cpu_quota
from worker.llama.context import Context
from worker.llama.devices import devices
from worker.llama.model import Model
from worker.llama.runner import DrawThreads, fastest_estimate
from worker.models.downloads.catalog import load_catalog, locate
from worker.models.facts.info import read_info
from worker.models.plan.devices import choose_device
from worker.wire.jobs import SamplingParams, SlotId, TokenId

Settings = Literal["greedy", "worst case"]
Origin = Literal["model", "synthetic"]
Draw = Callable[[int], object]
"""Draws from the row of that number."""

_GREEDY = SamplingParams(seed=0, temperature=0.0)
_WORST_CASE = SamplingParams(seed=0, temperature=0.8, top_p=0.95)
"""top_k off: every token of the vocabulary may be in the nucleus."""
_OURS: dict[Settings, SamplingParams] = {"greedy": _GREEDY, "worst case": _WORST_CASE}
_THEIRS: dict[Settings, dict[str, tuple[Stage, ...]]] = {
    "greedy": {"greedy": (chain.greedy,)},
    "worst case": {
        "top_p, temp, dist": (chain.top_p(0.95), chain.temp(0.8), chain.dist(1)),
        "temp, top_p, dist": (chain.temp(0.8), chain.top_p(0.95), chain.dist(1)),
    },
}
"""Name → stages. The worst case in llama-server's order and in ours."""

BOUNDS: dict[tuple[Settings, Origin], float] = {
    ("greedy", "model"): 1 / 10,
    ("greedy", "synthetic"): 1 / 10,
    ("worst case", "model"): 1 / 4,
    ("worst case", "synthetic"): 1 / 20,
}
"""The most a token of ours may cost, in tokens of llama.cpp's chain with the same settings. A model's own rows are no
worst case: few tokens hold nearly all of the probability, llama.cpp sorts 256 candidates only, and both sides do little
but exponentiate the row."""

SYNTHETIC_VOCABULARIES = (49_152, 152_064)
"""The default model's and a large one's."""

N_STEP_ROWS = 32
"""The rows of a step that many jobs share."""

_N_SYNTHETIC, _N_PEAKS = 8, 8
_TEXT = (
    "The harbour was quiet when the last ferry came in. Three people left it: a man with a cello, "
    "a woman who counted her steps aloud, and a child asleep"
)
_MAX_TOKENS = 16
"""The number of tokens of the text; its first two tokens give the first row, its first three the next."""

_N_PHRASE, _N_BIASED = 250, 16
"""The generated tokens that penalties look back on are a phrase of this many, twice; this many tokens have a bias."""


@click.command("sampling")
@click.option("--model", metavar="REF", help="Take real rows from it. [default: the catalogue's, if it is here]")
@where
@click.option("--rounds", type=click.IntRange(1, 1000), default=20, show_default=True, help="How often.")
def sampling(model: str | None, models_dir: Path, catalog: Path | None, rounds: int) -> None:
    """Compare the cost of drawing a token with llama.cpp's chains.

    Exit 1 when greedy costs more than a tenth of theirs, or the worst case (temperature 0.8, top_p 0.95, top_k off)
    more than a twentieth on synthetic rows, where very many tokens may be drawn, or a quarter on a model's rows. The
    second table is the cost of each request field switched on alone, the third that of a step of 32 rows on several
    threads. Measure on an idle machine.
    """
    path = _model_file(model, models_dir, catalog)
    with ExitStack() as open_models:
        rows = [synthetic_rows(n_vocab) for n_vocab in SYNTHETIC_VOCABULARIES]
        if path is not None:
            rows.insert(0, open_models.enter_context(model_rows(path)))
        found = [compare(each, settings, rounds) for each in rows for settings, at in BOUNDS if at == each.origin]
        fields = field_costs(rows[0], rounds)
        steps = {each.n_vocab: costs_by_threads(each, rounds) for each in rows if each.origin == "synthetic"}
    columns = ["settings", "rows", ">vocabulary", ">kept", ">ours", ">llama.cpp", "its chain", ">ratio", ">bound", ""]
    print_table(columns, [comparison.cells for comparison in found])
    alone = f"one field alone, {found[0].origin} rows of {found[0].n_vocab}"
    print_table([alone, ">per token"], [(field, f"{us:.1f} µs") for field, us in fields.items()])
    by_threads = [(str(n), str(n_vocab), f"{ms:.1f} ms") for n_vocab, costs in steps.items() for n, ms in costs.items()]
    print_table([">threads", ">vocabulary", f">worst case, a step of {N_STEP_ROWS} rows"], by_threads)
    check(bad_news(found))


def _model_file(asked: str | None, models_dir: Path, catalog_file: Path | None) -> Path | None:
    """The file asked for, else the default model's if it is here."""
    catalog = load_catalog(catalog_file)
    located = locate(asked or catalog.default.name, models_dir, catalog)
    if located.is_present:
        return located.path
    if asked:
        raise not_here(asked)
    click.echo(f"{catalog.default.name} is not here: synthetic rows only", err=True)
    return None


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows, at least one, each float32[n_vocab] without NaN. A context's rows are valid until it decodes again."""

    origin: Origin
    logits: Sequence[Logits]
    context: Context | None = None
    indexes: Sequence[int] = ()
    """The context's index of each row."""

    @property
    def n_vocab(self) -> int:
        return len(self.logits[0])


def synthetic_rows(n_vocab: int) -> Rows:
    """Normal logits of standard deviation 3 and mean 0, eight of them replaced by a uniform number in 8..14; seeded."""
    chance = np.random.default_rng(n_vocab)
    rows = chance.normal(0.0, 3.0, (_N_SYNTHETIC, n_vocab)).astype(np.float32)
    for row in rows:
        row[chance.integers(n_vocab, size=_N_PEAKS)] = chance.uniform(8.0, 14.0, _N_PEAKS)
    return Rows("synthetic", list(rows))


@contextmanager
def model_rows(path: Path) -> Iterator[Rows]:
    """A model's answers to the beginnings of a fixed text, one decode for all of them, on the CPU.

    Raises: BadModelFile, ModelLoadFailed, InsufficientMemory.
    """
    info = read_info(path)
    cpu = choose_device("cpu", devices())
    with Model.load(info.path, device=cpu, n_gpu_layers=0, on_progress=lambda _: None) as model:
        tokens = model.tokenize(_TEXT)[:_MAX_TOKENS]
        beginnings = [tokens[:n_tokens] for n_tokens in range(2, len(tokens) + 1)]
        n_tokens, n_threads = sum(map(len, beginnings)), cpu_quota()
        context = Context(
            model,
            n_ctx=n_tokens,
            n_batch=n_tokens,
            n_ubatch=n_tokens,
            n_seq_max=len(beginnings),
            n_threads=n_threads,
            n_threads_batch=n_threads,
        )
        wanted = SamplingParams(seed=0)
        indexes = context.decode(
            [Slice(SlotId(slot), 0, beginning, wanted) for slot, beginning in enumerate(beginnings)]
        )
        yield Rows("model", list(context.rows()), context, indexes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over all rows and rounds, per token."""

    settings: Settings
    origin: Origin
    n_vocab: int
    n_kept: int
    """The number of tokens that could be drawn from the median row."""
    ours_us: float
    llama_cpp_us: float
    chain: str
    """The stages of llama.cpp's chain; of several possible orders the fastest."""

    @property
    def ratio(self) -> float:
        return self.ours_us / self.llama_cpp_us

    @property
    def holds(self) -> bool:
        return self.ratio <= BOUNDS[self.settings, self.origin]

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            *(self.settings, self.origin, str(self.n_vocab), str(self.n_kept)),
            *(f"{self.ours_us:.1f} µs", f"{self.llama_cpp_us:.1f} µs", self.chain),
            *(f"{self.ratio:.3f}", f"{BOUNDS[self.settings, self.origin]:.3f}", "ok" if self.holds else "MISSED"),
        )


def bad_news(found: Sequence[Comparison]) -> list[str]:
    """A sentence for each bound that does not hold."""
    return [
        f"{one.settings} on {one.origin} rows of {one.n_vocab} tokens costs {one.ratio:.3f} "
        f"of llama.cpp's chain, at most {BOUNDS[one.settings, one.origin]:g} is allowed"
        for one in found
        if not one.holds
    ]


def compare(rows: Rows, settings: Settings, n_rounds: int) -> Comparison:
    """Ours and every order of theirs in turn over all rows, `n_rounds` times after one that is not counted."""
    asked = _OURS[settings]
    logits = rows.logits
    seeded = _one_seed_a_row(asked, rows)
    estimate = fastest_estimate()
    with ExitStack() as stack:
        chains = {name: stack.enter_context(Chain(rows.n_vocab, each)) for name, each in _THEIRS[settings].items()}
        ours: Draw = lambda row: sample(logits[row], seeded[row], (), estimate=estimate)  # noqa: E731
        theirs = [_drawing(each, rows) for each in chains.values()]
        ours_us, *theirs_us = _medians_us([ours, *theirs], logits, n_rounds)
    fastest_us, name = min(zip(theirs_us, chains, strict=True))
    n_kept = int(median(len(candidates(row, asked, ())[0]) for row in logits))
    added_us = 0.0 if rows.context else _added_by_python_us()
    return Comparison(settings, rows.origin, rows.n_vocab, n_kept, ours_us, fastest_us - added_us, name)


def field_costs(rows: Rows, n_rounds: int) -> dict[str, float]:
    """Microseconds of a token with each field of a request switched on alone, after a phrase said twice."""
    phrase = np.random.default_rng(0).permutation(rows.n_vocab)[:_N_PHRASE]
    generated = [int(token) for token in phrase] * 2
    ends = np.array(generated[:4], dtype=np.intp)
    fields = _fields(generated)
    estimate = fastest_estimate()

    def drawing(asked: SamplingParams) -> Draw:
        seeded = _one_seed_a_row(asked, rows)
        n_top = asked.logprobs

        def draw(row: int) -> object:
            token = sample(rows.logits[row], seeded[row], generated, ends, estimate=estimate)
            return token if n_top is None else log_probabilities(rows.logits[row], token, n_top)

        return draw

    costs_us = _medians_us([drawing(asked) for asked in fields.values()], rows.logits, n_rounds)
    return dict(zip(fields, costs_us, strict=True))


def costs_by_threads(rows: Rows, n_rounds: int) -> dict[int, float]:
    """The milliseconds of drawing from all rows of a step, in the worst case, by the number of threads: 1, 2, 4 as far
    as there are processors. Medians over rounds, in which they take turns."""
    estimate = fastest_estimate()
    turns = [(rows.logits[at % len(rows.logits)], replace(_WORST_CASE, seed=at)) for at in range(N_STEP_ROWS)]

    def draw(turn: tuple[Logits, SamplingParams]) -> TokenId:
        return sample(*turn, (), estimate=estimate)

    threads = {n: DrawThreads(n) for n in (1, 2, 4) if n <= cpu_quota()}
    taken_ms: dict[int, list[float]] = {n: [] for n in threads}
    for n_round in range(n_rounds + 1):
        for n, each in threads.items():
            began_s = time.perf_counter()
            _ = each.map(draw, turns) if n > 1 else [draw(turn) for turn in turns]
            if n_round:  # the first starts threads
                taken_ms[n].append(1000 * (time.perf_counter() - began_s))
    return {n: median(taken) for n, taken in taken_ms.items()}


def _fields(tokens: Sequence[int]) -> dict[str, SamplingParams]:
    """A typical value of each field; what `SamplingParams` leaves out is off. `tokens`: to be biased."""
    fields: dict[str, dict[str, Any]] = {
        "all off (temperature 1)": {},
        "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
        "logit_bias, 16 tokens": {"logit_bias": {str(token): 1.5 for token in tokens[:_N_BIASED]}},
        "ignore_eos": {"ignore_eos": True},
    }
    values = (
        *(("temperature", 0.0), ("temperature", 0.8), ("min_tokens", 1000), ("repetition_penalty", 1.1)),
        *(("frequency_penalty", 0.5), ("presence_penalty", 0.5), ("dry_multiplier", 0.8), ("top_n_sigma", 1.0)),
        *(("top_k", 40), ("typical_p", 0.9), ("top_p", 0.95), ("min_p", 0.05), ("xtc_probability", 1.0)),
        ("logprobs", 20),
    )
    fields |= {f"{name} {value:g}": {name: value} for name, value in values}
    return {name: SamplingParams(seed=0, **changes) for name, changes in fields.items()}


def _one_seed_a_row(asked: SamplingParams, rows: Rows) -> list[SamplingParams]:
    """A likely token may be cheaper to find than an unlikely one."""
    return [replace(asked, seed=seed) for seed in range(len(rows.logits))]


def _drawing(peer: Chain, rows: Rows) -> Draw:
    context = rows.context
    if context is None:
        return lambda row: peer.sample(rows.logits[row])
    return lambda row: peer.sample_output(context, rows.indexes[row])


def _medians_us(draws: Sequence[Draw], logits: Sequence[Logits], n_rounds: int) -> list[float]:
    """Each draw's median over all rows and rounds. They take turns, so that a busy moment hits all of them alike."""
    times_ns: list[list[int]] = [[] for _ in draws]
    for n_round in range(n_rounds + 1):
        for draw, measured in zip(draws, times_ns, strict=True):
            taken = [_time_ns(draw, row, each) for row, each in enumerate(logits)]
            # The first round allocates.
            if n_round:
                measured.extend(taken)
    return [median(measured) / 1000 for measured in times_ns]


def _time_ns(draw: Draw, row: int, logits: Logits) -> int:
    # Into the cache: whose turn it is must not decide that.
    logits.max()
    began = time.perf_counter_ns()
    draw(row)
    return time.perf_counter_ns() - began


def _added_by_python_us() -> float:
    """The cost of calling a chain with nothing to do: a vocabulary of one token."""
    row = np.zeros(1, dtype=np.float32)
    with Chain(1, [chain.greedy]) as nothing:
        return _medians_us([lambda _: nothing.sample(row)], [row], 200)[0]
