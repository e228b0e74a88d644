"""`python -m tools.bench kernels`: llama-bench of this build beside stock llama.cpp's, by file type and number of rows.

Owns the measured pairs, their order, and the file from which a run that was stopped goes on. Refuses to know how the
programs are built (scripts/bench_peers.sh). Loads llama.cpp in this process, for its quantiser. Never downloads.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import rich_click as click

from parity.llama.quantise import FILE_TYPES, quantise
from parity.provenance import now_rfc3339, this_machine
from tools import CHECKOUT
from tools.bench.measures import check
from tools.bench.sides import Rate
from tools.markdown import Cells, table
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.errors import ModelLoadFailed

LEAST = 0.97
"""The least ratio of our rate to stock's."""
ROWS = (1, 2, 4, 8, 16, 512)
"""The lengths of the prompts: llama-bench computes each in one step, so a product has as many rows."""
TYPES = ("Q4_K_M", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS", "F16", "BF16")
_OUT = CHECKOUT / ".bench"
_SHORT = TYPES[:1]
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_LLAMA_BENCH_S = 1800.0
_FLAGS = ("-O3", "-funroll-loops", "-march=native", "-pthread")
_N_TRIES, _TRY_S, _READ_S = 3, 0.3, 120.0
_MAX_BYTES = 1_000_000_000
"""More than the caches of any processor hold."""
Rates = dict[int, list[float]]
"""rows → tokens/s of each round"""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Both programs' rates for one file and one number of threads."""

    file_type: str
    n_threads: int
    compiler: str
    cpu: str
    created: str
    file_bytes: int
    read_bytes_per_s: float
    """The rate at which these threads read as many bytes again and again; 0 if it could not be measured."""
    ours: Rates
    stock: Rates

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.file_type, self.n_threads, self.compiler, self.cpu

    def ratio(self, n_rows: int) -> float:
        return median(self.ours[n_rows]) / median(self.stock[n_rows])

    @property
    def share(self) -> float:
        """The part of the memory's rate at which one row reads the file."""
        return median(self.ours[1]) * self.file_bytes / self.read_bytes_per_s if self.read_bytes_per_s else 0.0

    @property
    def missed(self) -> Iterator[str]:
        for n_rows in self.ours:
            if (ratio := self.ratio(n_rows)) < LEAST:
                yield f"{self.file_type}, {self.n_threads} threads, {n_rows} rows: {ratio:.3f}, at least {LEAST}"


@click.command("kernels")
@click.option("--ours", type=_FILE, required=True, help="This build's llama-bench.")
@click.option("--stock", type=_FILE, required=True, help="Stock llama.cpp's llama-bench.")
@click.option("--compiler", required=True, help="What compiled both, for the table.")
@click.option("--model", metavar="REF", help="Whose file types are made. [default: the catalogue's]")
@where
@click.option("--type", "types", type=click.Choice(tuple(FILE_TYPES)), multiple=True, help="[default: eleven types]")
@click.option("--threads", type=click.IntRange(1, 512), multiple=True, help="[default: 1, and all processors]")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Turns of each program.")
@click.option("--short", is_flag=True, help=f"Only {', '.join(_SHORT)}, with all processors.")
@click.option("--out", type=_FOLDER, default=_OUT, show_default=".bench", help="For kernels.json, kernels.md, models/.")
def kernels(
    *,
    ours: Path,
    stock: Path,
    compiler: str,
    model: str | None,
    models_dir: Path,
    catalog: Path,
    types: tuple[str, ...],
    threads: tuple[int, ...],
    rounds: int,
    short: bool,
    out: Path,
) -> None:
    """Compare this build's products with stock llama.cpp's, in turns, for each file type and number of rows.

    A pair that kernels.json has is not measured again, so a run that was stopped goes on; remove the file to begin
    anew. Exit 1 when a rate is below 0.97 of stock's. Measure on an idle machine.
    """
    source = present(model, models_dir, catalog)
    machine = this_machine(1)
    wanted = types or (_SHORT if short else TYPES)
    counts = threads or ((machine.n_usable,) if short else tuple({1: None, machine.n_usable: None}))
    out.mkdir(parents=True, exist_ok=True)
    found = read(out)
    for file_type in wanted:
        path = made_file(out / "models", source, file_type, n_threads=machine.n_usable)
        for n_threads in counts:
            key = (file_type, n_threads, compiler, machine.cpu)
            if key in found:
                continue
            click.echo(f"==> {file_type}, {n_threads} threads", err=True)
            mine, theirs = _in_turns((ours, stock), path, n_threads, rounds)
            n_bytes = path.stat().st_size
            found[key] = Pair(
                file_type=file_type,
                n_threads=n_threads,
                compiler=compiler,
                cpu=machine.cpu,
                created=now_rfc3339(),
                file_bytes=n_bytes,
                read_bytes_per_s=read_bytes_per_s(n_threads, n_bytes),
                ours=mine,
                stock=theirs,
            )
            write(found.values(), out)
    shown = [pair for pair in found.values() if pair.file_type in wanted and pair.n_threads in counts]
    print_table(*cells(shown))
    check(news for pair in shown for news in pair.missed)


def made_file(folder: Path, source: Path, file_type: str, *, n_threads: int) -> Path:
    """The source in that file type, made unless it is there. Raises: ModelLoadFailed, OSError."""
    target = folder / f"{source.stem}.as-{file_type}.gguf"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        quantise(source, target, file_type, n_threads=n_threads)
    return target


def read_bytes_per_s(n_threads: int, n_bytes: int) -> float:
    """The best of a few tries of reading as many bytes again and again, at most a billion. Nothing else may run
    meanwhile.

    0 without a C compiler for this processor. Raises: CalledProcessError if there is not enough memory.
    """
    source = Path(__file__).with_name("reads.c")
    with tempfile.TemporaryDirectory(prefix="llorch-reads-") as folder:
        program = Path(folder) / "reads"
        for compiler in filter(shutil.which, ("cc", "gcc", "clang")):
            made = subprocess.run(
                [compiler, *_FLAGS, str(source), "-o", str(program)], capture_output=True, check=False
            )
            if made.returncode == 0:
                asked = [str(program), str(n_threads), str(min(n_bytes, _MAX_BYTES)), str(_TRY_S)]
                return max(float(subprocess.check_output(asked, timeout=_READ_S)) for _ in range(_N_TRIES))
    return 0.0


def _in_turns(programs: tuple[Path, Path], path: Path, n_threads: int, n_rounds: int) -> tuple[Rates, Rates]:
    """The rates of both. The first program changes with each round, so that neither is always the warmer one."""
    ours, stock = ({n_rows: list[float]() for n_rows in ROWS} for _ in programs)
    turns = [*zip(programs, (ours, stock), strict=True)]
    for number in range(n_rounds):
        for program, rates in turns if number % 2 == 0 else turns[::-1]:
            for rate in _run(program, path, n_threads):
                rates[rate.n_prompt].append(rate.avg_ts)
    return ours, stock


def _run(program: Path, path: Path, n_threads: int) -> list[Rate]:
    """Raises: ModelLoadFailed."""
    task = ("-p", ",".join(map(str, ROWS)), "-n", "0", "-b", str(ROWS[-1]), "-ub", str(ROWS[-1]))
    command = [str(program), "-m", str(path), *task, "-t", str(n_threads), "-r", "2", "-o", "json"]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=_LLAMA_BENCH_S
    )
    if ended.returncode:
        raise ModelLoadFailed(f"{program} ended with {ended.returncode} for {path}")
    return msgspec.json.decode(ended.stdout, type=list[Rate])


def read(folder: Path) -> dict[tuple[str, int, str, str], Pair]:
    """Return the pairs that were measured before."""
    path = folder / "kernels.json"
    pairs = msgspec.json.decode(path.read_bytes(), type=list[Pair]) if path.is_file() else []
    return {pair.key: pair for pair in pairs}


def write(pairs: Iterable[Pair], folder: Path) -> None:
    kept = list(pairs)
    data = msgspec.json.format(msgspec.json.encode(kept), indent=2)
    (folder / "kernels.json").write_bytes(data + b"\n")
    (folder / "kernels.md").write_text(table(*cells(kept)) + "\n", encoding="utf-8")


def cells(pairs: Sequence[Pair]) -> tuple[Cells, Sequence[Cells]]:
    """Columns and rows: ours and stock's tokens/s with their ratio, for each number of rows."""
    columns = ("type", "threads", *(f">{n_rows} rows" if n_rows > 1 else ">1 row" for n_rows in ROWS), ">1 row reads")
    rows = [
        (
            *(pair.file_type, str(pair.n_threads)),
            *(f"{median(pair.ours[n]):.3g} / {median(pair.stock[n]):.3g} = {pair.ratio(n):.2f}" for n in ROWS),
            f"{pair.share:.0%} of {pair.read_bytes_per_s / 1e9:.1f} GB/s" if pair.share else "",
        )
        for pair in pairs
    ]
    whole = [f"{pair.cpu}; {pair.compiler}; {pair.created[:10]}" for pair in pairs]
    return columns, [*rows, *((where_, *[""] * (len(columns) - 1)) for where_ in dict.fromkeys(whole))]
