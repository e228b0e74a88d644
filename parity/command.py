"""`llorch-worker parity reference|run|show|verify|bounds`: is the model, as it is run, the reference?

Runs in a short-lived process of its own, which may load llama.cpp and PyTorch. Never downloads a GGUF.
"""

import hashlib
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import rich_click as click
from click.core import ParameterSource

import worker.llama  # noqa: F401 - before numpy, which brings a C++ library that some builds of llama.cpp die of
from parity import bundle
from parity.bounds import Bounds, built_in
from parity.bundle import REPORT_TEXT, proof_of, verify
from parity.case import Case, compared, from_checkpoint, from_logits_file, make_checkpoint, make_logits
from parity.levels.serving import SEEDS, Record
from parity.markdown import facts
from parity.outside import Outside
from parity.provenance import new_run_id, now_rfc3339, this_machine, versions
from parity.references import CHECKPOINT, LOGITS, Chosen, Subject, catalogued, folder_for, found, given, remember
from parity.report import LEVELS, BoundsUsed, Level, ModelFile, ReferenceUsed, Report, from_json, report_of
from parity.run import Run
from parity.servers import opened
from worker.argv import HELP_FLAGS
from worker.cli import read_settings, setting_options
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.config.option import TOKEN, SettingOption
from worker.config.settings import Settings
from worker.errors import UsageError, WorkerError
from worker.host import cpu_quota
from worker.models.downloads.catalog import load_catalog
from worker.server.front.certificate import REPORT_FILE
from worker.wire.load import Numerics

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_FOLDER = click.Path(path_type=Path, file_okay=False)

_of_the_text = _options(
    click.option(
        "--tokens",
        type=click.IntRange(512, 1_000_000),
        default=4096,
        show_default=True,
        metavar="N",
        help="Compute N tokens of the evaluation text.",
    ),
    click.option(
        "--work-dir",
        type=_FOLDER,
        show_default="the temporary directory",
        metavar="DIR",
        help="Put large intermediate files in DIR until the end: an F32 copy of the model, the reference's logits.",
    ),
)

_of_a_model = _options(
    click.option(
        "--model", metavar="REF", help="Take this GGUF, given like --model of serve. [default: the catalogue's]"
    ),
    where,
    click.option(
        "--threads",
        type=click.IntRange(1, 512),
        default=cpu_quota,
        show_default="all CPUs of this process",
        metavar="N",
        help="Compute with N threads on both sides.",
    ),
    _of_the_text,
)

_reference_option = click.option(
    "--reference",
    metavar="DIR|ID|FILE",
    help="Compare with a SafeTensors checkpoint, a hub id or reference logits. "
    "[default: the reference of the last `parity reference`]",
)

_judging_options = _options(
    _reference_option,
    click.option(
        "--bounds",
        "bounds_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Override the built-in bounds by those in this TOML file.",
    ),
    click.option(
        "--proof-dir",
        type=_FOLDER,
        default=bundle.DEFAULT_ROOT,
        envvar="LLORCH_PROOF_DIR",
        show_default=True,
        metavar="DIR",
        help="Write the proof bundle to DIR/parity/RUN_ID.",
    ),
    click.option(
        "--run-id", envvar="LLORCH_RUN_ID", metavar="ID", help="Name the run. [default: date, time and a digest]"
    ),
)


class ParityFailed(WorkerError):
    """A level failed, or a bundle was changed. The message is one line, the exit code 1."""


@click.group("parity", context_settings={"help_option_names": HELP_FLAGS})
def parity() -> None:
    """Prove what a quantised model computes, against the reference in PyTorch.

    The commands need the parity extra (pip install -e '.[parity]' in a checkout), of which `run` with reference logits
    takes the packages gguf and safetensors only. docs/parity.md explains every level.
    """
    # As Ctrl-C, so that intermediate files and a worker that was started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@parity.command("reference")
@click.option(
    "--checkpoint",
    metavar="DIR|ID",
    help="Take this SafeTensors checkpoint or hub id. [default: the catalogue's, else made from the GGUF]",
)
@click.option(
    "--output", type=_FOLDER, show_default="user cache directory", metavar="DIR", help="Write the reference to DIR."
)
@_of_a_model
def reference(checkpoint: str | None, output: Path | None, **options: Any) -> None:
    """Make the reference of a model, or find the one made before; print its checkpoint and its logits file.

    For a name of the catalogue this is the original checkpoint that it names, from the models directory (ORG/REPO), the
    hub's cache or the hub. For any other model, and where that cannot be had, the GGUF is de-quantised into a
    SafeTensors checkpoint with the same weights. `parity run` takes what was chosen last. The logits file lets it do
    without PyTorch and the checkpoint.
    """
    asked = Asked(**options)
    with asked.subject() as subject:
        folder = output or folder_for(subject, _store())
        chosen = given(checkpoint) if checkpoint else asked.original()
        chosen = chosen or Chosen(make_checkpoint(subject, folder, _say), CHECKPOINT)
        path, work = chosen.folder, subject.work
        logits = make_logits(path, folder, n_tokens=asked.tokens, n_threads=asked.threads, work=work, say=_say)
        if output is None:
            remember(chosen, folder)
        click.echo(path.absolute())
        click.echo(logits.absolute())


@parity.command("run")
@click.option(
    "--level",
    "names",
    type=click.Choice(LEVELS),
    multiple=True,
    metavar="NAME",
    help=f"Run only this level; may be repeated. One of {', '.join(LEVELS)}.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Judge the worker or llama-server at URL over HTTP. The reference is then a file of logits.",
)
@click.option(
    "--token",
    cls=SettingOption,
    type=TOKEN,
    envvar="LLORCH_API_TOKEN",
    other_envvar="LLORCH_API_KEY",
    metavar="T",
    help="Send this bearer token to the server at URL. Prefer LLORCH_API_TOKEN or LLORCH_API_KEY.",
)
@_judging_options
@_of_the_text
@click.pass_context
def run(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    *,
    url: str | None,
    token: str | None,
    tokens: int,
    work_dir: Path | None,
    **options: Any,
) -> None:
    """Compare a model with its reference at every level; write a proof bundle and print where.

    The model is loaded as serve loads it with the same flags, variables and config file. Exit 1 when a level fails,
    naming the first deviation, and when one named with --level cannot run.
    """
    settings = read_settings(ctx, default_model=lambda catalog: load_catalog(catalog).default.name)
    if url is not None:
        _refuse_flags_of_a_load(ctx)
    judging = _judging(options)
    bounds = Bounds.load(judging.bounds_file)
    chosen = names or LEVELS
    asked = Asked.of(settings, tokens, work_dir)
    if url is not None and not _is_given(ctx, "model"):
        # A server that runs somewhere reads no file of ours unless one is named.
        asked = replace(asked, model=None)
    if url is not None:
        with _outside(url, token, judging, asked) as outside:
            levels = list(outside.levels(chosen, _say))
            report = judging.report(
                levels,
                model=outside.model,
                reference=outside.used,
                parameters=outside.parameters,
                n_threads=asked.threads,
            )
        _write(report, judging.proof_dir, names, **_evidence(outside.transcript))
        return
    with asked.subject() as subject:
        run = Run(judging.case(subject, tokens), bounds, settings)
        levels = list(run.levels(chosen, _say))
        parameters = {**compared(run.case), "levels": ", ".join(chosen)}
        info = subject.info
        report = judging.report(
            levels,
            model=ModelFile(info.path.name, subject.sha256, info.file_bytes, info.quant_kind, info.architecture),
            reference=run.case.used,
            parameters=parameters,
            n_threads=subject.n_threads,
            numerics=run.numerics,
        )
    _write(report, judging.proof_dir, names, **_evidence(run.transcript))


_FILE_OPTIONS = ("model", "models_dir", "catalog")
_LOADING_OPTIONS = setting_options("Device and memory", also=(*_FILE_OPTIONS, "deterministic"))
run.params.extend(_LOADING_OPTIONS)


@parity.command("show")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def show(file: Path) -> None:
    """Print what a report.json, or the one in a proof bundle, says was proved: of what, with what, how far.

    `verify` says whether the bundle is as it was written; /health of a worker, whether it covers what runs there.
    """
    try:
        report = from_json((file / REPORT_FILE if file.is_dir() else file).read_bytes())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file} is not the {REPORT_FILE} of a parity run: {error}") from None
    print_table(["what", "value"], [("verdict", report.verdict), ("created", report.created), *facts(report)])
    if report.numerics is None:
        click.echo("The report does not name the settings of the computation, so it covers no worker exactly.")
    _print_levels(report)


@parity.command("verify")
@click.argument("folder", type=_FOLDER, metavar="BUNDLE")
def verify_bundle(folder: Path) -> None:
    """Check a proof bundle: every digest, and every verdict against its numbers.

    Exit 1 where something is not as it was.
    """
    wrong = verify(folder)
    if wrong:
        raise ParityFailed(f"{folder}: {'; '.join(wrong)}")
    click.echo(f"{folder}: whole and consistent")


@parity.command("bounds")
def print_bounds() -> None:
    """Print the built-in bounds with their reasons, to edit and give to `parity run --bounds`."""
    click.echo(built_in().decode(), nl=False)


# ── what the options name ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options that all comparisons share."""

    model: str | None
    models_dir: Path
    catalog: Path | None
    threads: int
    tokens: int
    work_dir: Path | None

    @classmethod
    def of(cls, settings: Settings, tokens: int, work_dir: Path | None) -> "Asked":
        """The model and the threads that the options of serve name."""
        return cls(
            model=settings.model,
            models_dir=settings.models_dir,
            catalog=settings.catalog,
            threads=settings.threads or cpu_quota(),
            tokens=tokens,
            work_dir=work_dir,
        )

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
        return catalogued(entry.reference, self.models_dir, _say) if entry and entry.reference else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """And those of what is judged."""

    reference: str | None
    bounds_file: Path | None
    proof_dir: Path
    run_id: str | None

    def case(self, subject: Subject, n_tokens: int) -> Case:
        """The subject and its reference: the named one, else the one of the last `parity reference`.

        Raises: UsageError, at once where the run has its bundle already.
        """
        self._check_run_id()
        chosen = given(self.reference) if self.reference else found(subject, _store())
        if chosen.folder.is_file():
            return from_logits_file(subject, chosen.folder, say=_say)
        return from_checkpoint(subject, chosen.folder, chosen.name, n_tokens=n_tokens, say=_say)

    def logits(self, subject: Subject | None) -> Path:
        """The file of reference logits: the one that is named, else the model's. Raises: UsageError, as `case`."""
        self._check_run_id()
        if self.reference is not None:
            path = Path(self.reference)
        else:
            assert subject is not None
            path = folder_for(subject, _store()) / LOGITS
        if not path.is_file():
            raise UsageError(
                f"{self.reference or LOGITS} is not a file here: with --url the reference is the file of logits that"
                " `llorch-worker parity reference` writes and prints"
            )
        return path

    def _check_run_id(self) -> None:
        if self.run_id:
            bundle.run_folder(self.proof_dir, "parity", self.run_id)

    def report(
        self,
        levels: Sequence[Level],
        *,
        model: ModelFile,
        reference: ReferenceUsed,
        parameters: dict[str, str],
        n_threads: int,
        numerics: Numerics | None = None,
    ) -> Report:
        return report_of(
            run_id=self.run_id or new_run_id(reference.sha256),
            created=now_rfc3339(),
            model=model,
            reference=reference,
            bounds=_bounds_used(self.bounds_file),
            parameters=parameters,
            versions=versions(),
            machine=this_machine(n_threads),
            levels=levels,
            numerics=numerics,
        )


@contextmanager
def _outside(url: str, token: str | None, judging: Judging, asked: Asked) -> Iterator[Outside]:
    """The server at `url`, to be judged. The model's file is read where it is named, and where it names the reference.

    Raises: UsageError, NotServed.
    """
    with ExitStack() as closing:
        is_wanted = asked.model is not None or judging.reference is None
        subject = closing.enter_context(asked.subject()) if is_wanted else None
        path = judging.logits(subject)
        server = closing.enter_context(opened(url, token))
        yield Outside.of(server, path, subject, Bounds.load(judging.bounds_file), n_tokens=asked.tokens)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _refuse_flags_of_a_load(ctx: click.Context) -> None:
    """Raises: UsageError. Variables and a config file are meant for a worker on this machine, and pass."""
    for option in _LOADING_OPTIONS:
        assert option.name is not None
        if option.name not in _FILE_OPTIONS and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            flag = option.opts[0]
            raise UsageError(
                f"{flag} configures loading a model, but the server at --url has loaded its own: remove it"
            )


def _say(what: str) -> None:
    """Progress, on stderr."""
    click.echo(f"==> {what}", err=True)


def _judging(options: dict[str, Any]) -> Judging:
    """Take the options of what is judged out of a command's."""
    return Judging(**{name: options.pop(name) for name in ("reference", "bounds_file", "proof_dir", "run_id")})


def _store() -> Path:
    """The folder for references."""
    return Settings().models_dir.parent / "parity"


def _bounds_used(path: Path | None) -> BoundsUsed:
    data = path.read_bytes() if path else built_in()
    return BoundsUsed(path.name if path else "built in", hashlib.sha256(data).hexdigest())


# ── what is printed and written ──────────────────────────────────────────────────────────────────


def _evidence(transcript: Sequence[Record]) -> dict[str, Any]:
    """The requests and their seeds, for the bundle."""
    return {
        "seeds": [{"level": "serving", "seed": seed} for seed in SEEDS if transcript],
        "transcript": [msgspec.to_builtins(record) for record in transcript],
    }


def _write(report: Report, root: Path, asked_for: Collection[str], **evidence: Any) -> None:
    """The bundle, the levels in a table, where the report is; and an error when something failed, or one of the levels
    that were asked for by name could not run."""
    folder = bundle.write(root, proof_of(report, **evidence))
    _print_levels(report)
    click.echo(f"{report.verdict}: {folder / REPORT_TEXT}")
    wrong = [level for level in report.levels if level.verdict == "fail"]
    wrong += [level for level in report.levels if level.verdict == "not run" and level.name in asked_for]
    if not wrong and report.verdict != "pass":
        raise ParityFailed("no level ran: nothing was compared")
    if wrong:
        raise ParityFailed("; ".join(f"{level.name}: {_outcome(level)}" for level in wrong))


def _print_levels(report: Report) -> None:
    rows = [(level.name, level.verdict, f"{level.seconds:.1f} s", level.summary) for level in report.levels]
    print_table(["level", "verdict", ">time", ""], rows)


def _outcome(level: Level) -> str:
    return level.summary if level.verdict == "fail" else f"could not run: {level.summary}"
