"""The options of `llorch-worker parity`, and what they name: the model, the reference, the report's circumstances.

Owns: spelling, defaults, where references are kept unless --output says otherwise. Refuses to know: the commands.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from worker.commands.places import present, where
from worker.config.settings import Settings
from worker.host import cpu_quota
from worker.model.catalog import load_catalog
from worker.parity import bundle
from worker.parity.bounds import built_in
from worker.parity.case import Case, Subject, from_checkpoint, from_logits_file
from worker.parity.provenance import new_run_id, now_rfc3339, this_machine, versions
from worker.parity.references import Chosen, catalogued, found, given
from worker.parity.report import BoundsUsed, Level, ModelFile, Report, report_of

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


FOLDER = click.Path(path_type=Path, file_okay=False)

of_a_model = _options(
    click.option("--model", metavar="REF", help="The GGUF, as for serve. [default: the catalogue's]"),
    where,
    click.option(
        "--threads",
        type=click.IntRange(1, 512),
        default=cpu_quota,
        show_default="what this process may use",
        metavar="N",
        help="Threads of both sides.",
    ),
    click.option(
        "--tokens",
        type=click.IntRange(512, 1_000_000),
        default=4096,
        show_default=True,
        metavar="N",
        help="How much of the evaluation text is computed.",
    ),
    click.option(
        "--work-dir",
        type=FOLDER,
        show_default="the temporary directory",
        metavar="DIR",
        help="For large intermediate files, which are removed: two F32 copies of the model and the reference's logits.",
    ),
)

judging_options = _options(
    click.option(
        "--reference",
        metavar="DIR|ID|FILE",
        help="A SafeTensors checkpoint, a hub id, or reference logits. [default: what `parity reference` took]",
    ),
    click.option(
        "--bounds", "bounds_file", type=click.Path(path_type=Path), metavar="FILE", help="Your own bounds over ours."
    ),
    click.option(
        "--proof-dir",
        type=FOLDER,
        default=bundle.DEFAULT_ROOT,
        envvar="LLORCH_PROOF_DIR",
        show_default=True,
        metavar="DIR",
        help="Where the proof bundle goes: DIR/parity/RUN_ID.",
    ),
    click.option("--run-id", envvar="LLORCH_RUN_ID", metavar="ID", help="[default: date, time and revision]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options that all comparisons share."""

    model: str | None
    models_dir: Path
    catalog: Path | None
    threads: int
    tokens: int
    work_dir: Path | None

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        """The model with a work folder that is removed at the end. Raises: ModelNotFound, BadModelFile, UsageError."""
        path = present(self.model, self.models_dir, self.catalog)
        if self.work_dir is not None:
            self.work_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="llorch-parity-", dir=self.work_dir) as work:
            yield Subject.of(path, n_threads=self.threads, work=Path(work))

    def original(self) -> Chosen | None:
        """The original checkpoint that the catalogue names for the model; None where it names none, the model is a
        file, or the checkpoint cannot be had."""
        catalog = load_catalog(self.catalog)
        entry = catalog.find(self.model) if self.model else catalog.default
        return catalogued(entry.reference, self.models_dir, say) if entry and entry.reference else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """And those of what is judged."""

    reference: str | None
    bounds_file: Path | None
    proof_dir: Path
    run_id: str | None

    def case(self, subject: Subject, n_tokens: int) -> Case:
        """Gather all that is to be judged. Raises: UsageError, at once where the run has its bundle already."""
        if self.run_id:
            bundle.run_folder(self.proof_dir, "parity", self.run_id)
        chosen = given(self.reference) if self.reference else found(subject, store())
        if chosen.folder.is_file():
            return from_logits_file(subject, chosen.folder, say=say)
        return from_checkpoint(subject, chosen.folder, chosen.name, n_tokens=n_tokens, say=say)

    def report(self, case: Case, levels: Sequence[Level], parameters: dict[str, str]) -> Report:
        info = case.subject.info
        return report_of(
            run_id=self.run_id or new_run_id(case.subject.sha256),
            created=now_rfc3339(),
            model=ModelFile(info.path.name, case.subject.sha256, info.file_bytes, info.quant_kind, info.architecture),
            reference=case.used,
            bounds=_bounds_used(self.bounds_file),
            parameters=parameters,
            versions=versions(),
            machine=this_machine(case.subject.n_threads),
            levels=levels,
        )


def say(what: str) -> None:
    """Progress, on stderr."""
    click.echo(f"==> {what}", err=True)


def split(options: dict[str, Any]) -> tuple[Judging, Asked]:
    """All options of a command that has both groups."""
    ours = {name: options.pop(name) for name in ("reference", "bounds_file", "proof_dir", "run_id")}
    return Judging(**ours), Asked(**options)


def store() -> Path:
    """Where references are kept."""
    return Settings().models_dir.parent / "parity"


def _bounds_used(path: Path | None) -> BoundsUsed:
    data = path.read_bytes() if path else built_in()
    return BoundsUsed(path.name if path else "built in", hashlib.sha256(data).hexdigest())
