"""The options of `python -m tools.bench load`, and what they name: the servers, the scenarios, the circumstances.

Owns: spelling, defaults, what goes with what. Refuses to know: how anything is measured (tools/bench).
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

import worker
from tools.bench.report import Circumstances
from tools.bench.scenarios import SCENARIOS, Scenario
from tools.bench.servers import LLAMA_SERVER, OURS, Plan, found, llama_server, our_worker
from tools.bench.session import Found, Wanted
from tools.bench.sides import LlamaBench
from worker.commands.places import present, where
from worker.config.settings import environment
from worker.errors import UsageError
from worker.parity.provenance import now_rfc3339, this_machine

OVERLOAD = "overload"
_N_REFUSALS = 10_000
_NAMES = (*(scenario.name for scenario in SCENARIOS), OVERLOAD)
_SPECULATION = ("--spec-type", "ngram-simple")
"""llama-server's counterpart of prompt lookup."""
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def load_options(command: _Command) -> _Command:
    """In the order of the help."""
    for option in reversed(
        [
            click.option("--model", metavar="REF", help="As for serve. [default: the catalogue's]"),
            where,
            click.option(
                "--rounds",
                type=click.IntRange(1, 1000),
                default=7,
                show_default=True,
                metavar="N",
                help="After a warm-up that does not count.",
            ),
            click.option(
                "--scenario",
                "scenarios",
                type=click.Choice(_NAMES),
                multiple=True,
                metavar="NAME",
                help=f"Only this; may be given more than once: {', '.join(_NAMES)}. [default: all]",
            ),
            *_server_options(),
            click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the prompts. [default: random]"),
            click.option(
                "--out",
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Write report.json, report.md and the servers' logs there.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables."),
        ]
    ):
        command = option(command)
    return command


def _server_options() -> Sequence[Callable[[_Command], _Command]]:
    return [
        click.option("--ctx-size", type=click.IntRange(512), default=16_384, show_default=True, help="Of both sides."),
        click.option("--parallel", type=click.IntRange(1, 256), default=16, show_default=True, help="Of both sides."),
        click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="Of both sides."),
        click.option(
            "--worker-flags",
            default="",
            callback=_split_flags,
            metavar="FLAGS",
            help="More flags of serve, as one argument, as in '--prompt-lookup off'.",
        ),
        click.option("--url", metavar="URL", help="Measure this running worker instead of starting one."),
        click.option("--api-key", envvar="LLORCH_API_TOKEN", metavar="TOKEN", help="Of the worker at --url."),
        click.option(
            "--peer",
            "peers",
            multiple=True,
            metavar="NAME=URL",
            help="A running peer: llama-server=URL, or another worker by any other name. May be given more than once.",
        ),
        click.option("--peer-binary", type=_FILE, metavar="FILE", help="Start this llama-server as a peer."),
        click.option("--llama-bench", type=_FILE, metavar="FILE", help="Compare one stream with this llama-bench."),
    ]


def _split_flags(context: click.Context, option: click.Parameter, value: str) -> list[str]:  # noqa: ARG001 - click's
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"--worker-flags {value}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given."""

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

    def wanted(self, seed: int, logs: Path) -> Wanted:
        """Raises: UsageError; ModelNotFound where something has to be started."""
        return Wanted(
            ours=self._ours(),
            peers=self._peers(),
            speculating=self._llama_server(f"{LLAMA_SERVER}-ngram", _SPECULATION),
            llama_bench=self._llama_bench(),
            scenarios=self._scenarios(),
            n_refusals=_N_REFUSALS if OVERLOAD in self._names() else 0,
            n_rounds=self.rounds,
            seed=seed,
            logs=logs,
            environment=_for_children(),
        )

    def notes(self) -> list[str]:
        """What was left out, and why."""
        left_out = [name for name in _NAMES if name not in self._names()] if self.url and not self.scenarios else []
        return [f"{', '.join(left_out)} left out: they need workers of their own"] if left_out else []

    def circumstances(self, wanted: Wanted, found: Found) -> Circumstances:
        machine = this_machine(self.threads)
        plans = [wanted.ours, *wanted.peers, *([wanted.speculating] if wanted.speculating else [])]
        return Circumstances(
            created=now_rfc3339(),
            model=self._model().name if self._needs_model() else "",
            cpu=machine.cpu,
            n_usable=machine.n_usable,
            system=machine.system,
            versions={
                OURS: worker.__version__,
                "llama-cpp-python": version("llama-cpp-python"),
                **found.versions,
            },
            commands={plan.name: plan.shown for plan in plans},
            openmp={name: value for name, value in wanted.environment.items() if name.startswith(("OMP_", "GOMP_"))},
            n_rounds=wanted.n_rounds,
            seed=wanted.seed,
        )

    def _names(self) -> tuple[str, ...]:
        if not self.url:
            return self.scenarios or _NAMES
        alone = {OVERLOAD, *(scenario.name for scenario in SCENARIOS if scenario.worker_flags)}
        if refused := alone.intersection(self.scenarios):
            raise UsageError(f"--scenario {min(refused)} needs a worker of its own: leave out --url")
        return self.scenarios or tuple(name for name in _NAMES if name not in alone)

    def _scenarios(self) -> list[Scenario]:
        return [scenario for scenario in SCENARIOS if scenario.name in self._names()]

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

    def _llama_bench(self) -> LlamaBench | None:
        return LlamaBench(self.llama_bench, self._model(), self.threads) if self.llama_bench else None

    def _needs_model(self) -> bool:
        return not self.url or self.peer_binary is not None or self.llama_bench is not None

    def _model(self) -> Path:
        return present(self.model, self.models_dir, self.catalog)


def _named(peer: str) -> Plan:
    name, equals, url = peer.partition("=")
    if not name or not equals:
        raise UsageError(f"--peer {peer}: give it as NAME=URL, as in {LLAMA_SERVER}=http://127.0.0.1:8081")
    return found(name, url)


def _for_children() -> Mapping[str, str]:
    """All but our own settings: flags alone decide."""
    return {name: value for name, value in environment().items() if not name.startswith("LLORCH_")}
