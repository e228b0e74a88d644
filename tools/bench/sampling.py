"""`python -m tools.bench sampling`: what drawing a token costs, next to llama.cpp's own sampler chains.

Owns the bounds, the verdict and what is printed. Refuses to know how costs are measured (llama/sampling_costs.py).
Runs in a short-lived process of its own, which may load llama.cpp. Never downloads.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from tools.bench.llama.logit_rows import Origin, Rows, model_rows, synthetic_rows
from tools.bench.llama.sampling_costs import Comparison, FieldCost, Settings, compare, field_costs
from tools.bench.measures import BoundMissed
from worker.commands.places import not_here, where
from worker.commands.tables import print_json, print_table
from worker.model.catalog import load_catalog, locate

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison against its bound, in the words and the order of the output."""

    settings: str
    rows: str
    """model | synthetic"""
    vocabulary: int
    kept: int
    """How many tokens could be drawn from the median row."""
    ours_us: float
    llama_cpp_us: float
    llama_cpp_chain: str
    ratio: float
    bound: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured; `fields` on the first kind of rows of `comparisons`."""

    comparisons: list[Verdict]
    fields: list[FieldCost]


@click.command("sampling")
@click.option(
    "--model", metavar="REF", help="Take real rows from this model. [default: the catalogue's, if it is here]"
)
@where
@click.option("--rounds", type=click.IntRange(1, 1000), default=20, show_default=True, help="How often.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables.")
def sampling(model: str | None, models_dir: Path, catalog: Path | None, rounds: int, *, as_json: bool) -> None:
    """Compare the cost of drawing a token with llama.cpp's chains.

    Exit 1 when greedy costs more than a tenth of theirs, or the worst case (temperature 0.8, top_p 0.95, top_k off)
    more than a twentieth on synthetic rows, where very many tokens may be drawn, or a quarter on a model's rows. The
    second table is the cost of each request field switched on alone. Measure on an idle machine.
    """
    with _rows(_model_file(model, models_dir, catalog)) as rows:
        report = measure(rows, rounds)
    if as_json:
        print_json(report)
    else:
        _print(report)
    check(report.comparisons)


def measure(rows: Sequence[Rows], n_rounds: int) -> Report:
    """Every comparison on every kind of rows, and the fields' costs on the first."""
    comparisons = [
        compare(each, settings, n_rounds) for each in rows for settings, origin in BOUNDS if origin == each.origin
    ]
    return Report([judge(comparison) for comparison in comparisons], field_costs(rows[0], n_rounds))


def judge(comparison: Comparison) -> Verdict:
    """The comparison with its ratio, its bound, and whether it holds."""
    bound = BOUNDS[comparison.settings, comparison.origin]
    ratio = comparison.ours_us / comparison.llama_cpp_us
    return Verdict(
        settings=comparison.settings,
        rows=comparison.origin,
        vocabulary=comparison.n_vocab,
        kept=comparison.n_kept,
        ours_us=comparison.ours_us,
        llama_cpp_us=comparison.llama_cpp_us,
        llama_cpp_chain=comparison.chain,
        ratio=ratio,
        bound=bound,
        holds=ratio <= bound,
    )


def check(verdicts: Sequence[Verdict]) -> None:
    """Raises: BoundMissed, naming every bound that does not hold."""
    missed = [
        f"{verdict.settings} on {verdict.rows} rows of {verdict.vocabulary} tokens costs {verdict.ratio:.3f} "
        f"of llama.cpp's chain, at most {verdict.bound:g} is allowed"
        for verdict in verdicts
        if not verdict.holds
    ]
    if missed:
        raise BoundMissed("; ".join(missed))


@contextmanager
def _rows(path: Path | None) -> Iterator[list[Rows]]:
    """The model's rows, if there is one, and the synthetic ones."""
    with ExitStack() as open_models:
        real = [] if path is None else [open_models.enter_context(model_rows(path))]
        yield [*real, *(synthetic_rows(n_vocab) for n_vocab in SYNTHETIC_VOCABULARIES)]


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


def _print(report: Report) -> None:
    columns = ["settings", "rows", ">vocabulary", ">kept", ">ours", ">llama.cpp", "its chain", ">ratio", ">bound", ""]
    print_table(columns, [_cells(verdict) for verdict in report.comparisons])
    first = report.comparisons[0]
    where = f"one field alone, {first.rows} rows of {first.vocabulary}"
    print_table([where, ">per token"], [(cost.field, _shown_us(cost.us)) for cost in report.fields])


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.settings,
        verdict.rows,
        str(verdict.vocabulary),
        str(verdict.kept),
        _shown_us(verdict.ours_us),
        _shown_us(verdict.llama_cpp_us),
        verdict.llama_cpp_chain,
        f"{verdict.ratio:.3f}",
        f"{verdict.bound:.3f}",
        "ok" if verdict.holds else "MISSED",
    )


def _shown_us(us: float) -> str:
    return f"{us:.1f} µs"
