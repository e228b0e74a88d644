"""Where the error comes from: the difference to the reference taken apart, one change at a time.

Owns the changes, their order and their table. Each is measured up to three ways: on the model file, one after the
other (`the step`); on F32 weights by itself (`alone`); and all so far against the reference. Refuses to know how rows
are computed (setups.py) and how close they should be (bounds.toml).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from worker.llama.devices import devices
from worker.model.info import read_info
from worker.parity.bounds import Bounds
from worker.parity.compare import Summary
from worker.parity.evidence import ReferenceLogits, Window
from worker.parity.llama.scoring import Setup
from worker.parity.results import Check, Level, Series, Table, judged
from worker.parity.setups import EXACT, Rows, as_served, compute, cpu, evaluated

NAME = "sources"
N_TOKENS = 1024
N_SINGLE = 64
"""Tokens that are also computed one at a time."""

NOTE = (
    "The step: on the model file, against the step before. Alone: the same change on F32 weights and nothing else. So "
    "far: against the reference. KL is the mean, in nats. On quantised weights a step may cost far more than the same "
    "change alone: every matrix product first rounds its input to 8 bits, a change of the last bits decides which way "
    "some numbers round, and the layers after it pass that on. There every step that changes any bit costs about as "
    "much as the rounding itself, whatever it is, and steps do not add up: one outcome of the rounding takes the place "
    "of another. What a change costs by itself is under `alone`."
)


@dataclass(frozen=True, slots=True)
class Source:
    """A row of the table; None where a way of measuring does not apply."""

    key: str
    """In the bounds: `kv.f16`."""
    name: str
    step: Summary | None = None
    alone: Summary | None = None
    so_far: Summary | None = None


def run(
    *,
    twin: Path,
    file: Path,
    dequantised: Path,
    reference: ReferenceLogits,
    bounds: Bounds,
    n_threads: int,
    n_tokens: int = N_TOKENS,
) -> Level:
    """Take the difference apart. `twin`: the reference's weights in F32; `dequantised`: the file's, in F32.

    Beside `dequantised` lie up to three sets of n_tokens rows of float32[n_vocab] while it runs.
    """
    numbers = evaluated(reference, n_tokens)
    with TemporaryDirectory(dir=dequantised.parent, prefix="sources-") as folder:
        sources = list(_Split(Path(folder), reference, numbers, n_threads).sources(twin, file, dequantised))
    n_evaluated = sum(len(reference.windows[number].tokens) for number in numbers)
    found = list(checks(sources, bounds, read_info(file).quant_kind))
    return judged(NAME, _says(sources), found, tables=[table(sources, n_evaluated)], series=plotted(sources))


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Change:
    key: str
    name: str
    path: Path | None = None
    """The file after the step; None where the change is measured alone only."""
    setup: Setup = EXACT
    """After the step."""
    alone: Setup | None = None


def _changes(file: Path, dequantised: Path, served: Setup) -> tuple[_Change, ...]:
    """From F32 weights to the file as it is served."""
    k, v = served.type_k, served.type_v
    cached = replace(EXACT, type_k=k, type_v=v)
    flash = replace(cached, flash_attn=served.flash_attn)
    chunks = f"batch shape: chunks of {served.n_rows} tokens"
    return (
        _Change("weights", "weights quantised", dequantised),
        _Change("activations", "activations quantised", file),
        _Change("kv.f16", "KV cache: K f16, V f16", alone=replace(EXACT, type_k="f16", type_v="f16")),
        _Change(f"kv.{k}", f"KV cache: K {k}, V {v}", file, cached, alone=cached),
        _Change("flash", "flash attention", file, flash, alone=replace(EXACT, flash_attn="on")),
        _Change("batch", chunks, file, served, alone=replace(EXACT, n_rows=served.n_rows)),
    )


@dataclass(frozen=True, slots=True)
class _Split:
    folder: Path
    reference: ReferenceLogits
    numbers: Sequence[int]
    """Of the reference's windows."""
    n_threads: int
    _folders: Iterator[int] = field(default_factory=count)

    def sources(self, twin: Path, file: Path, dequantised: Path) -> Iterator[Source]:
        """The rows of the table, in its order."""
        served = as_served(cpu())
        exact = self._rows(twin, EXACT)
        first = exact.against(self.reference, self.numbers)
        yield Source("float32", "float32 arithmetic and RoPE angles", alone=first, so_far=first)
        before = exact
        for change in _changes(file, dequantised, served):
            alone = self._alone(twin, change.alone, exact) if change.alone else None
            if change.path is None:
                yield Source(change.key, change.name, alone=alone)
                continue
            after = self._rows(change.path, change.setup)
            so_far = after.against(self.reference, self.numbers)
            yield Source(change.key, change.name, after.against(before.logits), alone, so_far)
            if before is not exact:
                before.remove()
            before = after
        yield self._one_at_a_time(twin, file, served)
        yield from self._backends(file, before)

    def _alone(self, twin: Path, setup: Setup, exact: Rows) -> Summary:
        rows = self._rows(twin, setup)
        summary = rows.against(exact.logits)
        rows.remove()
        return summary

    def _one_at_a_time(self, twin: Path, file: Path, served: Setup) -> Source:
        start = (Window("short", self.reference.windows[self.numbers[0]].tokens[:N_SINGLE]),)

        def single(path: Path, setup: Setup) -> Summary:
            together = self._rows(path, setup, start)
            return self._rows(path, replace(setup, n_rows=1), start).against(together.logits)

        return Source("batch", "batch shape: one token at a time", single(file, served), single(twin, EXACT))

    def _backends(self, file: Path, on_cpu: Rows) -> Iterator[Source]:
        gpus = [device for device in devices() if device.is_gpu]
        for gpu in gpus:
            rows = compute(
                file, as_served(gpu), self._windows(), folder=self._folder(), n_threads=self.n_threads, device=gpu
            )
            name = f"backend: {gpu.backend}:{gpu.index} in place of the CPU"
            yield Source("backend", name, rows.against(on_cpu.logits), None, rows.against(self.reference, self.numbers))
            rows.remove()
        if not gpus:
            yield Source("backend", "backend: none here but the CPU")

    def _rows(self, path: Path, setup: Setup, windows: Sequence[Window] | None = None) -> Rows:
        return compute(path, setup, windows or self._windows(), folder=self._folder(), n_threads=self.n_threads)

    def _windows(self) -> list[Window]:
        return [self.reference.windows[number] for number in self.numbers]

    def _folder(self) -> Path:
        return self.folder / str(next(self._folders))


# ── judging and showing ──────────────────────────────────────────────────────────────────────────

STEPS_JUDGED = {"activations": "kl_mean", "batch": "max_error", "backend": "kl_mean"}
"""Steps on the file that have a bound of their own, by the file's type, and what of them is judged."""


def checks(sources: Sequence[Source], bounds: Bounds, file_type: str) -> Iterator[Check]:
    """Everything alone, and some steps, in the order of the table."""
    for source in sources:
        if source.alone is not None:
            name, alone, key = f"{source.name}, on F32 weights", source.alone, f"sources.{source.key}"
            kl = alone.kl_mean
            yield bounds.check(f"{name}: mean KL", kl.value, f"{key}.kl_mean", note=kl.text())
            yield bounds.check(f"{name}: largest error of a logit", alone.max_error, f"{key}.max_error")
        if source.step is not None and source.key in STEPS_JUDGED:
            what = STEPS_JUDGED[source.key]
            value = source.step.max_error if what == "max_error" else source.step.kl_mean.value
            words = "largest error of a logit" if what == "max_error" else "mean KL"
            keys = [f"sources.step.{source.key}.{kind}.{what}" for kind in (file_type, "other")]
            yield bounds.check(f"{source.name}, on the {file_type} file: {words}", value, *keys)


def table(sources: Sequence[Source], n_tokens: int) -> Table:
    """The sources as rows."""
    columns = (
        *("what changes", ">KL, step", ">max |Δ|, step", ">top-1, step"),
        *(">KL, alone", ">max |Δ|, alone", ">top-1, alone"),
        *(">KL, so far", ">max |Δ|, so far", ">top-1, so far"),
    )
    rows = tuple(
        (source.name, *_cells(source.step), *_cells(source.alone), *_cells(source.so_far)) for source in sources
    )
    return Table(f"Where the error comes from, over {n_tokens} tokens", columns, rows, NOTE)


def plotted(sources: Sequence[Source]) -> list[Series]:
    """The mean KL of every source, on the file and alone."""
    return [
        _line("on the file", [(source.name, source.step) for source in sources]),
        _line("alone, on F32 weights", [(source.name, source.alone) for source in sources]),
    ]


def _line(line: str, points: Sequence[tuple[str, Summary | None]]) -> Series:
    known = {name: summary.kl_mean.value for name, summary in points if summary is not None}
    title = "Mean KL divergence by what changes"
    return Series("error-sources", title, tuple(known.values()), tuple(known), "nats", line=line)


def _cells(summary: Summary | None) -> tuple[str, str, str]:
    if summary is None:
        return ("", "", "")
    # Rounding leaves up to 1e-14 of a KL where both sides are the same.
    kl = 0.0 if summary.max_error == 0.0 else summary.kl_mean.value
    return (f"{kl:.2g}", f"{summary.max_error:.2g}", f"{summary.top1.value:.2%}")


def _says(sources: Sequence[Source]) -> str:
    steps = [f"{source.name} {source.step.kl_mean.value:.2g}" for source in sources if source.step is not None]
    return "mean KL of each step on the file: " + "; ".join(steps)
