"""The meaning of the options of `load`: the servers and their flags, the scenarios, the circumstances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import worker
from parity.provenance import now_rfc3339, this_machine
from tools.bench.report import Circumstances
from tools.bench.scenarios import CONVERSATIONS, LARGE, LLAMA_BATCHED_BENCH, LLAMA_BENCH, ON_GPU, SCENARIOS, Scenario
from tools.bench.servers import LLAMA_SERVER, NO_CACHE, OURS, Plan, found, llama_server, our_worker
from tools.bench.session import Wanted
from tools.bench.sides import Part, Tool
from worker.commands.places import present
from worker.errors import UsageError

NAMES = tuple(scenario.name for scenario in (*ON_GPU, *CONVERSATIONS))
LARGE_BYTES = 300_000_000
"""A file of more is asked less, and less often, on a CPU."""
ROUNDS, ROUNDS_OF_LARGE = 7, 3
_ALONE = {one.name for one in ON_GPU if not one.has_drafts}
"""The scenarios that need a worker with other flags."""
_NO_DRAFTS = ("--prompt-lookup", "off")
_NO_HOST_CACHE = ("--cache-ram", "0")
"""llama-server copies finished jobs' cells to main memory, which costs a GPU half of its tokens."""
_SPECULATIONS: dict[str, tuple[str, ...]] = {
    "ngram": (
        *("--spec-type", "ngram-mod,ngram-map-k"),
        *("--spec-ngram-mod-n-match", "16", "--spec-ngram-mod-n-min", "8", "--spec-ngram-mod-n-max", "32"),
        *("--spec-ngram-map-k-size-n", "4", "--spec-ngram-map-k-size-m", "12"),
    ),
    "ngram-simple": ("--spec-type", "ngram-simple"),
}
"""llama-server's counterparts of prompt lookup that need no other model: the flags with the fewest steps, and those
that its documentation names first. docs/performance.md has others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options as they were given, and what they name: the servers, the scenarios, the circumstances."""

    model: str | None
    models_dir: Path
    catalog: Path | None = None
    rounds: int | None = None
    scenarios: tuple[str, ...] = ()
    ctx_size: int
    parallel: int
    threads: int
    worker_flags: list[str]
    url: str | None = None
    api_key: str | None = None
    peers: tuple[str, ...] = ()
    peer_binary: Path | None = None
    our_flags_binary: Path | None = None
    llama_bench: Path | None = None
    llama_batched_bench: Path | None = None

    @property
    def file(self) -> Path:
        """Raises: ModelNotFound, UsageError."""
        return present(self.model, self.models_dir, self.catalog)

    @property
    def left_out(self) -> list[str]:
        """The scenarios that were not excluded by name."""
        names = [scenario.name for scenario in self._usual if scenario.name in _ALONE]
        return names if self.url and not self.scenarios else []

    def wanted(self, seed: int, logs: Path) -> Wanted:
        """Raises: UsageError; ModelNotFound where something has to be started."""
        sides = list(self._sides())
        names = [plan.name for _, plan in sides]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(f"two sides are called {min(twice)}: give --peer another name")
        named = ((LLAMA_BENCH, self.llama_bench), (LLAMA_BATCHED_BENCH, self.llama_batched_bench))
        tools = [Tool(name, binary, self.file, self.ctx_size, self.threads) for name, binary in named if binary]
        return Wanted(
            sides=sides,
            tools=tools,
            scenarios=self._scenarios(),
            logs=logs,
            circumstances=Circumstances(
                created=now_rfc3339(),
                model=self.file.name if not self.url or self.peer_binary or self.our_flags_binary or tools else "",
                machine=this_machine(self.threads),
                versions={OURS: worker.__version__, "llama-cpp-python": version("llama-cpp-python")},
                commands={plan.name: plan.shown for _, plan in sides},
                n_rounds=self.rounds or (ROUNDS_OF_LARGE if self._is_large else ROUNDS),
                seed=seed,
            ),
        )

    @property
    def _is_large(self) -> bool:
        return not self.url and not self._is_for_gpu and self.file.stat().st_size > LARGE_BYTES

    @property
    def _is_for_gpu(self) -> bool:
        """True if the worker is configured to use a GPU."""
        flags = iter(self.worker_flags)
        return any(flag == "--device" and next(flags, "cpu") != "cpu" for flag in flags)

    @property
    def _usual(self) -> Sequence[Scenario]:
        return ON_GPU if self._is_for_gpu else LARGE if self._is_large else SCENARIOS

    def _scenarios(self) -> list[Scenario]:
        """The usual ones, or those that were named. Raises: UsageError for one that cannot run at a URL or with such a
        large model."""
        if not self.scenarios:
            return [one for one in self._usual if not (self.url and one.name in _ALONE)]
        if self.url and (refused := _ALONE.intersection(self.scenarios)):
            raise UsageError(f"--scenario {min(refused)} needs a worker of its own: leave out --url")
        known = {one.name: one for one in (*(LARGE if self._is_large else ON_GPU), *CONVERSATIONS)}
        if unknown := [name for name in self.scenarios if name not in known]:
            raise UsageError(f"--scenario {unknown[0]} is not asked of a model as large as {self.file.name}: remove it")
        return [one for name, one in known.items() if name in self.scenarios]

    def _sides(self) -> Iterator[tuple[Part, Plan]]:
        ours = self._ours()
        yield "ours", ours
        if not self.url:
            yield "ours without drafts", ours.with_flags(f"{OURS}-no-drafts", _NO_DRAFTS)
        if self.peer_binary:
            yield "judged", self._llama_server(LLAMA_SERVER, self.peer_binary)
        if self.peer_binary and self._is_for_gpu:
            yield "judged", self._llama_server(NO_CACHE, self.peer_binary, _NO_HOST_CACHE)
        for peer in self.peers:
            name, equals, url = peer.partition("=")
            if not name or not equals:
                raise UsageError(f"--peer {peer}: give it as NAME=URL, as in {LLAMA_SERVER}=http://127.0.0.1:8081")
            yield "judged", found(name, url)
        if self.our_flags_binary:
            yield "beside", self._llama_server(f"{LLAMA_SERVER}-our-flags", self.our_flags_binary)
        if self.peer_binary:
            for name, speculation in _SPECULATIONS.items():
                yield "speculating", self._llama_server(f"{LLAMA_SERVER}-{name}", self.peer_binary, speculation)

    def _ours(self) -> Plan:
        if self.url and self.worker_flags:
            raise UsageError("--worker-flags are for a worker that is started: leave out --url, or them")
        if self.url:
            return found(OURS, self.url, self.api_key)
        flags = ["--ctx-size", str(self.ctx_size), "--parallel", str(self.parallel), "--threads", str(self.threads)]
        return our_worker(self.file, [*flags, *self.worker_flags])

    def _llama_server(self, name: str, binary: Path, flags: Sequence[str] = ()) -> Plan:
        own = ["-c", str(self.ctx_size), "-np", str(self.parallel), "-kvu", "-t", str(self.threads)]
        return llama_server(name, binary, self.file, [*own, *flags])
