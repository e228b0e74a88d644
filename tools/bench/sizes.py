"""`python -m tools.bench sizes`: models of the sizes and quantisations that people run, beside llama.cpp's own tools.

Owns which files are measured, how they are made, and the tables over all of them. Refuses to know how anything is
measured (session.py), what is asked (scenarios.py), and which flags the sides get (load_command.py). Loads llama.cpp in
this process, for its quantiser. Never downloads.
"""

import secrets
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
import uvloop

from parity.llama.quantise import FILE_TYPES, quantise
from tools import CHECKOUT
from tools.bench.asked import Asked
from tools.bench.load_command import announce, split_flags
from tools.bench.measures import check
from tools.bench.processes import Memory
from tools.bench.report import Line, Report
from tools.bench.scenarios import SIZES, Scenario
from tools.bench.servers import LLAMA_SERVER, OURS
from tools.bench.session import measure
from tools.bench.sides import LLAMA_BENCH
from tools.bench.tables import circumstances, mb, missed, roof_cells, shown
from tools.made_model import SHAPES, made_model
from tools.markdown import Cells, table
from worker.commands.places import present, where
from worker.commands.tables import print_table

_USUAL = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "llama-3.2-1b", "mistral-7b")
MADE = CHECKOUT / ".bench" / "models"
"""The folder of made files, unless another is named."""
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("sizes")
@click.argument("files", nargs=-1, type=_FILE, metavar="[GGUF]...")
@click.option("--model", metavar="REF", help="Whose file types are made. [default: the catalogue's]")
@where
@click.option(
    "--size",
    "names",
    type=click.Choice((*FILE_TYPES, *SHAPES)),
    multiple=True,
    help=f"A file type of the model, or a shape of random weights. [default: {', '.join(_USUAL)}; none beside files]",
)
@click.option("--made", type=_FOLDER, default=MADE, show_default=".bench/models", help="Where made files are kept.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Besides a warm-up.")
@click.option("--ctx-size", type=click.IntRange(2048), default=4096, show_default=True, help="Of both sides.")
@click.option("--parallel", type=click.IntRange(8, 256), default=8, show_default=True, help="Of both sides.")
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="Of all sides.")
@click.option(
    "--worker-flags",
    default="--prompt-lookup off",
    show_default=True,
    callback=split_flags,
    help="More flags of serve, as one argument.",
)
@click.option("--peer-binary", type=_FILE, help="Start this llama-server as a peer.")
@click.option("--llama-bench", type=_FILE, help="Compare one stream and the prompt with this llama-bench.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the prompts. [default: random]")
@click.option("--out", type=_FOLDER, help="Write sizes.json, sizes.md and the servers' logs there.")
def sizes(
    *,
    files: tuple[Path, ...],
    names: tuple[str, ...],
    made: Path,
    model: str | None,
    seed: int | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Measure a worker with one model after another: 1 stream, 8 streams, a prompt, memory.

    The models are those given, or copies of the default model in other file types and models of random weights, which
    are made first. With peers the sides take turns, as in `load`. Exit 1 when a file is behind 0.97 of llama-server in
    any of the three rates, or when requests failed. Measure on an idle machine.
    """
    # As Ctrl-C, so that the servers that were started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    source = Asked(
        model=model,
        scenarios=(),
        url=None,
        api_key=None,
        peers=(),
        our_flags_binary=None,
        ik_server=None,
        llama_batched_bench=None,
        **options,
    )
    wanted = names or (() if files else _USUAL)
    paths = [*files, *(_made(made, name, source) for name in wanted)]
    seed = secrets.randbits(32) if seed is None else seed
    found: list[Size] = []
    for path in paths:
        click.echo(f"==> {path.name}", err=True)
        found.append(_measured(path, replace(source, model=str(path)), seed, out))
        if out is not None:  # each time, because all of them take hours
            _write(found, out)
    for columns, rows in tables(found):
        print_table(columns, rows)
    check(f"{one.name}: {news}" for one in found for news in (*missed(one.report), *one.report.failures))


def _made(folder: Path, name: str, asked: Asked) -> Path:
    """The file of a file type or a shape, made unless it is there. Raises: ModelNotFound, ModelLoadFailed, OSError."""
    if name in SHAPES:
        return made_model(folder, SHAPES[name])
    return made_file(folder, present(asked.model, asked.models_dir, asked.catalog), name, n_threads=asked.threads)


def made_file(folder: Path, source: Path, file_type: str, *, n_threads: int) -> Path:
    """The source in that file type, made unless it is there. Raises: ModelLoadFailed, OSError."""
    target = folder / f"{source.stem}.as-{file_type}.gguf"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        quantise(source, target, file_type, n_threads=n_threads)
    return target


def _measured(path: Path, asked: Asked, seed: int, out: Path | None) -> "Size":
    with tempfile.TemporaryDirectory(prefix="llorch-bench-") as temporary:
        logs = Path(temporary) if out is None else out / "logs" / path.stem
        logs.mkdir(parents=True, exist_ok=True)
        wanted = replace(asked.wanted(seed, logs), scenarios=SIZES, n_refusals=0)
        roof = asked.roof()
        found = uvloop.run(measure(wanted, announce))
    return Size(
        name=path.stem,
        file_bytes=path.stat().st_size,
        allocated_bytes=found.allocated_bytes,
        report=found.report(asked.circumstances(wanted, found, roof)),
    )


def _write(found: "Sequence[Size]", out: Path) -> None:
    data = msgspec.json.format(msgspec.json.encode(found), indent=2)
    (out / "sizes.json").write_bytes(data + b"\n")
    (out / "sizes.md").write_text("\n\n".join(table(*each) for each in tables(found)) + "\n", encoding="utf-8")


# ── printing ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The results for one file."""

    name: str
    file_bytes: int
    allocated_bytes: int
    """The memory of our worker, from its /health: weights, KV cells, compute buffers."""
    report: Report

    def line(self, scenario: Scenario, peer: str | None = None) -> Line | None:
        """The line of the scenario's main measure against the peer, or against any; None if it was not measured."""
        lines = (line for line in self.report.lines if line.is_own and line.scenario == scenario.name)
        return next((line for line in lines if peer in (None, line.peer)), None)

    def memory(self, side: str) -> Memory | None:
        """The memory of all its processes after the warm-up; None if none was started here."""
        parts = [one.memory for one in self.report.resident if one.process.split(",")[0] == side]
        if not parts:
            return None
        return Memory(sum(one.resident_bytes for one in parts), sum(one.anonymous_bytes for one in parts))


def tables(found: Sequence[Size]) -> Iterator[tuple[Cells, Sequence[Cells]]]:
    """Columns and rows: a table for each scenario, then one of the memory, a row for each file; with what and where the
    last file was measured."""
    for scenario in SIZES:
        beside = [cell for peer in (LLAMA_SERVER, LLAMA_BENCH) for cell in (f">{peer}", f">ours / {peer}'s")]
        yield (scenario.title, ">ours", *beside, ">roof", ">ours by roof"), [_speeds(size, scenario) for size in found]
    columns = (
        "memory after the warm-up",
        *(">file", ">allocated", ">ours", f">{LLAMA_SERVER}", f">ours / {LLAMA_SERVER}'s"),
        *(">ours without mapped files", f">{LLAMA_SERVER}", f">ours / {LLAMA_SERVER}'s"),
    )
    yield columns, [_memory(size) for size in found]
    for size in found[-1:]:
        yield circumstances(size.report.circumstances)


def _speeds(size: Size, scenario: Scenario) -> Cells:
    ours = size.line(scenario)
    cells = [size.name, shown(ours.ours, ours.unit) if ours else "-"]
    for peer in (LLAMA_SERVER, LLAMA_BENCH):
        line = size.line(scenario, peer)
        cells += [shown(line.theirs, line.unit), str(line.ratio or "-")] if line else ["", ""]
    return (*cells, *(roof_cells(ours) if ours else ("", "")))


def _memory(size: Size) -> Cells:
    ours, theirs = size.memory(OURS), size.memory(LLAMA_SERVER)
    return (
        *(size.name, mb(size.file_bytes), mb(size.allocated_bytes)),
        *_beside(ours.resident_bytes if ours else None, theirs.resident_bytes if theirs else None),
        *_beside(ours.anonymous_bytes if ours else None, theirs.anonymous_bytes if theirs else None),
    )


def _beside(ours: int | None, theirs: int | None) -> Cells:
    return (mb(ours), mb(theirs), f"{ours / theirs:.3f}" if ours and theirs else "")
