"""`llorch-worker parity reference|run|matrix|verify|bounds`: is the model, as the worker runs it, still the reference?

Owns: options, what is printed, exit codes. Refuses to know: how anything is compared (worker/parity).
Runs in a short-lived process of its own, which may load llama.cpp and PyTorch. Never downloads a GGUF.
"""

import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from worker.argv import HELP_FLAGS
from worker.commands.parity_options import (
    FOLDER,
    Asked,
    judging_options,
    of_a_model,
    say,
    split,
    store,
)
from worker.commands.tables import print_table
from worker.errors import WorkerError
from worker.parity import bundle, matrix
from worker.parity.bounds import Bounds, built_in
from worker.parity.bundle import REPORT_TEXT, proof_of, verify
from worker.parity.case import compared, make_checkpoint, make_logits
from worker.parity.levels.serving import SEEDS
from worker.parity.references import CHECKPOINT, Chosen, folder_for, given, remember
from worker.parity.report import LEVELS, Level, Report, not_run
from worker.parity.run import Run, matrix_of


class ParityFailed(WorkerError):
    """A level failed, or a bundle is not what it was: one line that says where, exit 1."""


@click.group("parity", context_settings={"help_option_names": HELP_FLAGS})
def parity() -> None:
    """Prove what a quantised model computes, against the reference in PyTorch.

    `reference` and `run` need the parity extra (pip install 'llorch-worker[parity]'); `run` with reference logits does
    not. docs/parity.md explains every level.
    """
    # As Ctrl-C, so that intermediate files and a worker that was started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@parity.command("reference")
@click.option(
    "--checkpoint",
    metavar="DIR|ID",
    help="A SafeTensors checkpoint or hub id. [default: the catalogue's, else made from the GGUF]",
)
@click.option(
    "--output", type=FOLDER, show_default="user cache directory", metavar="DIR", help="Where the reference goes."
)
@of_a_model
def reference(checkpoint: str | None, output: Path | None, **options: Any) -> None:
    """Make the reference of a model, or find the one made before; print its checkpoint and its logits file.

    For a name of the catalogue this is the original checkpoint that it names, from the models directory (ORG/REPO), the
    hub's cache or the hub. For any other model, and where that cannot be had, the GGUF is de-quantised into a
    SafeTensors checkpoint with the same weights. `parity run` takes what was chosen last. The logits file lets it do
    without PyTorch and the checkpoint.
    """
    asked = Asked(**options)
    with asked.subject() as subject:
        folder = output or folder_for(subject, store())
        chosen = given(checkpoint) if checkpoint else asked.original()
        chosen = chosen or Chosen(make_checkpoint(subject, folder, say), CHECKPOINT)
        path, work = chosen.folder, subject.work
        logits = make_logits(path, folder, n_tokens=asked.tokens, n_threads=asked.threads, work=work, say=say)
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
    help=f"Only this level; several times for more. One of {', '.join(LEVELS)}.",
)
@judging_options
@of_a_model
def run(names: tuple[str, ...], **options: Any) -> None:
    """Compare a model with its reference at every level; write a proof bundle and print where.

    Exit 1 when a level fails, naming the first deviation, and when one named with --level cannot run.
    """
    judging, asked = split(options)
    bounds = Bounds.load(judging.bounds_file)
    chosen = names or LEVELS
    with asked.subject() as subject:
        run = Run(judging.case(subject, asked.tokens), bounds)
        levels = list(run.levels(chosen, say))
        parameters = {**compared(run.case), "levels": ", ".join(chosen)}
        report = judging.report(run.case, levels, parameters)
    _write(
        report,
        judging.proof_dir,
        names,
        seeds=[{"level": "serving", "seed": seed} for seed in SEEDS if run.transcript],
        transcript=[msgspec.to_builtins(record) for record in run.transcript],
    )


@parity.command("matrix")
@judging_options
@of_a_model
def quantisation_matrix(**options: Any) -> None:
    """Quantise the reference to each type; print size, KL, top-1, perplexity ratio and speed.

    Measure on an idle machine.
    """
    judging, asked = split(options)
    bounds = Bounds.load(judging.bounds_file)
    with asked.subject() as subject:
        case = judging.case(subject, asked.tokens)
        levels = [not_run(name, "not asked for") for name in LEVELS]
        levels.append(matrix_of(case, bounds, asked.tokens, say))
        report = judging.report(case, levels, compared(case))
    for table in levels[-1].tables:
        print_table(list(table.columns), table.rows)
    _write(report, judging.proof_dir, [matrix.NAME])


@parity.command("verify")
@click.argument("folder", type=FOLDER, metavar="BUNDLE")
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


# ── what is printed and written ──────────────────────────────────────────────────────────────────


def _write(report: Report, root: Path, asked_for: Collection[str], **evidence: Any) -> None:
    """The bundle, the levels in a table, where the report is; and an error when something failed, or one of the levels
    that were asked for by name could not run."""
    folder = bundle.write(root, proof_of(report, **evidence))
    rows = [(level.name, level.verdict, f"{level.seconds:.1f} s", level.summary) for level in report.levels]
    print_table(["level", "verdict", ">time", ""], rows)
    click.echo(f"{report.verdict}: {folder / REPORT_TEXT}")
    wrong = [level for level in report.levels if level.verdict == "fail"]
    wrong += [level for level in report.levels if level.verdict == "not run" and level.name in asked_for]
    if not wrong and report.verdict != "pass":
        raise ParityFailed("no level ran: nothing was compared")
    if wrong:
        raise ParityFailed("; ".join(f"{level.name}: {_outcome(level)}" for level in wrong))


def _outcome(level: Level) -> str:
    return level.summary if level.verdict == "fail" else f"could not run: {level.summary}"
