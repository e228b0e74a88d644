"""`python -m tools.bench load`: the scenarios of docs/performance.md, on a worker and beside it on a peer.

Owns the options, what they name, where the report goes, the exit code. Refuses to know how anything is measured
(session.py). Starts servers as child processes; never loads llama.cpp, never downloads.
"""

import secrets
import shlex
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
import uvloop

import worker
from tools.bench.measures import check
from tools.bench.report import Circumstances, Report, bad_news, tables
from tools.bench.scenarios import SCENARIOS, Scenario
from tools.bench.servers import LLAMA_SERVER, OURS, Plan, for_children, found, llama_server, our_worker
from tools.bench.session import Found, Wanted, measure
from tools.bench.sides import LlamaBench
from tools.markdown import table
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.errors import UsageError
from worker.parity.provenance import now_rfc3339, this_machine

OVERLOAD = "overload"
_N_REFUSALS = 10_000
_NAMES = (*(scenario.name for scenario in SCENARIOS), OVERLOAD)
_ALONE = {OVERLOAD, *(scenario.name for scenario in SCENARIOS if scenario.worker_flags)}
"""Those that need a worker of their own."""
_SPECULATION = ("--spec-type", "ngram-simple")
"""llama-server's counterpart of prompt lookup."""
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


def split_flags(context: click.Context, option: click.Parameter, value: str) -> list[str]:  # noqa: ARG001 - click's
    """The callback of --worker-flags. Raises: UsageError."""
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"--worker-flags {value}: {error}") from None


@click.command("load")
@click.option("--model", metavar="REF", help="As for serve. [default: the catalogue's]")
@where
@click.option("--rounds", type=click.IntRange(1, 1000), default=7, show_default=True, help="Besides a warm-up.")
@click.option("--scenario", "scenarios", type=click.Choice(_NAMES), multiple=True, help="Only these. [default: all]")
@click.option("--ctx-size", type=click.IntRange(512), default=16_384, show_default=True, help="Of both sides.")
@click.option("--parallel", type=click.IntRange(1, 256), default=16, show_default=True, help="Of both sides.")
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="Of both sides.")
@click.option("--worker-flags", default="", callback=split_flags, help="More flags of serve, as one argument.")
@click.option("--url", metavar="URL", help="Measure this running worker instead of starting one.")
@click.option("--api-key", envvar="LLORCH_API_TOKEN", metavar="TOKEN", help="Of the worker at --url.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=URL",
    help="A running peer: llama-server=URL, or another worker by any other name. May be given more than once.",
)
@click.option("--peer-binary", type=_FILE, help="Start this llama-server as a peer.")
@click.option("--llama-bench", type=_FILE, help="Compare one stream with this llama-bench.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the prompts. [default: random]")
@click.option("--out", type=_FOLDER, help="Write report.json, report.md and the servers' logs there.")
def load(*, seed: int | None, out: Path | None, **options: Any) -> None:
    """Put a worker under load over HTTP, and tell what it does; with a peer also in what relation.

    By default a worker is started, measured and ended. With a peer the sides take turns, round by round, never both at
    once, with the same prompts. Exit 1 when a bound of docs/performance.md does not hold, or when requests failed.
    Measure on an idle machine.
    """
    # As Ctrl-C, so that the servers that were started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = Asked(**options)
    report = _measured(asked, secrets.randbits(32) if seed is None else seed, out)
    if out is not None:
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (out / "report.json").write_bytes(data + b"\n")
        (out / "report.md").write_text("\n\n".join(table(*each) for each in tables(report)) + "\n", encoding="utf-8")
    for columns, rows in tables(report):
        print_table(columns, rows)
    if left_out := [name for name in _NAMES if name not in asked.names and not asked.scenarios]:
        click.echo(f"left out: {', '.join(left_out)}, which need workers of their own", err=True)
    check(bad_news(report))


def _measured(asked: "Asked", seed: int, out: Path | None) -> Report:
    with tempfile.TemporaryDirectory(prefix="llorch-bench-") as temporary:
        logs = Path(temporary) if out is None else out / "logs"
        wanted = asked.wanted(seed, logs)
        logs.mkdir(parents=True, exist_ok=True)
        found = uvloop.run(measure(wanted, tell))
    return found.report(asked.circumstances(wanted, found))


def tell(number: int, scenario: Scenario) -> None:
    """What comes next, on stderr."""
    click.echo(f"==> {f'round {number}' if number else 'warm-up'}, {scenario.name}", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given, and what they name: the servers, the scenarios, the circumstances."""

    model: str | None
    models_dir: Path
    catalog: Path | None
    rounds: int
    scenarios: tuple[str, ...]
    ctx_size: int
    parallel: int
    threads: int
    worker_flags: list[str]
    url: str | None
    api_key: str | None
    peers: tuple[str, ...]
    peer_binary: Path | None
    llama_bench: Path | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the scenarios. Raises: UsageError for one that cannot run at a URL."""
        if not self.url:
            return self.scenarios or _NAMES
        if refused := _ALONE.intersection(self.scenarios):
            raise UsageError(f"--scenario {min(refused)} needs a worker of its own: leave out --url")
        return self.scenarios or tuple(name for name in _NAMES if name not in _ALONE)

    def wanted(self, seed: int, logs: Path) -> Wanted:
        """Raises: UsageError; ModelNotFound where something has to be started."""
        return Wanted(
            ours=self._ours(),
            peers=self._peers(),
            speculating=self._llama_server(f"{LLAMA_SERVER}-ngram", _SPECULATION),
            llama_bench=LlamaBench(self.llama_bench, self._model(), self.threads) if self.llama_bench else None,
            scenarios=[scenario for scenario in SCENARIOS if scenario.name in self.names],
            n_refusals=_N_REFUSALS if OVERLOAD in self.names else 0,
            n_rounds=self.rounds,
            seed=seed,
            logs=logs,
            environment=for_children(),
        )

    def circumstances(self, wanted: Wanted, found: Found) -> Circumstances:
        needs_model = not self.url or self.peer_binary is not None or self.llama_bench is not None
        plans = [wanted.ours, *wanted.peers, *([wanted.speculating] if wanted.speculating else [])]
        own = {OURS: worker.__version__, "llama-cpp-python": version("llama-cpp-python")}
        return Circumstances(
            created=now_rfc3339(),
            model=self._model().name if needs_model else "",
            machine=this_machine(self.threads),
            versions=own | found.versions,
            commands={plan.name: plan.shown for plan in plans},
            openmp={name: value for name, value in wanted.environment.items() if name.startswith(("OMP_", "GOMP_"))},
            n_rounds=wanted.n_rounds,
            seed=wanted.seed,
        )

    def _ours(self) -> Plan:
        if self.url and self.worker_flags:
            raise UsageError("--worker-flags are for a worker that is started: leave out --url, or them")
        if self.url:
            return found(OURS, self.url, self.api_key)
        flags = ["--ctx-size", str(self.ctx_size), "--parallel", str(self.parallel), "--threads", str(self.threads)]
        return our_worker(self._model(), [*flags, *self.worker_flags])

    def _peers(self) -> list[Plan]:
        started = self._llama_server(LLAMA_SERVER)
        peers = [*([started] if started else []), *(_named(peer) for peer in self.peers)]
        names = [OURS, *(peer.name for peer in peers)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two sides are called {min(twice)}: give --peer another name")
        return peers

    def _llama_server(self, name: str, flags: Sequence[str] = ()) -> Plan | None:
        if self.peer_binary is None:
            return None
        own = ["-c", str(self.ctx_size), "-np", str(self.parallel), "-kvu", "-t", str(self.threads)]
        return llama_server(name, self.peer_binary, self._model(), [*own, *flags])

    def _model(self) -> Path:
        return present(self.model, self.models_dir, self.catalog)


def _named(peer: str) -> Plan:
    name, equals, url = peer.partition("=")
    if not name or not equals:
        raise UsageError(f"--peer {peer}: give it as NAME=URL, as in {LLAMA_SERVER}=http://127.0.0.1:8081")
    return found(name, url)
