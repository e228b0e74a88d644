"""`llorch-worker models list|pull|path|verify`: the catalogue in the terminal.

Results go to stdout (`pull` and `path` print a path and nothing else), progress to stderr. `serve` starts `models pull`
as a child to download.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rich_click as click
import stamina.instrumentation
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from worker.argv import HELP_FLAGS
from worker.commands.places import not_here, where
from worker.commands.tables import print_table
from worker.errors import BadModelFile, ModelNotFound
from worker.host import sha256_of
from worker.models.downloads.catalog import Catalog, CatalogEntry, load_catalog, locate, unknown_name
from worker.models.downloads.fetch import OnBytes, fetch


@click.group("models", context_settings={"help_option_names": HELP_FLAGS})
def models() -> None:
    """List, download, find and check models.

    MODEL is a name in the catalogue (`models list` shows them), a file in the models directory, a path, or a
    repository of the Hugging Face hub: org/repo:QUANT, hf:org/repo[@revision][:QUANT or ::file=name.gguf].
    """


@models.command("list")
@where
def list_models(models_dir: Path, catalog: Path | None) -> None:
    """Show the catalogue: name, size, licence, and whether the file is here.

    If stdout is not a terminal, the output is one line per model, with tabs between the four.
    """
    rows = (_row(entry, models_dir) for entry in load_catalog(catalog).entries)
    print_table(["name", "size", "licence", "present"], rows)


@models.command("pull")
@click.argument("reference", metavar="MODEL")
@where
def pull(reference: str, models_dir: Path, catalog: Path | None) -> None:
    """Download MODEL unless it is here, check it, and print its path.

    An interrupted download from the hub or a URL continues where it stopped.
    HF_ENDPOINT, HF_HOME and HF_TOKEN have their usual effect.
    """
    located = locate(reference, models_dir, load_catalog(catalog))
    stamina.instrumentation.set_on_retry_hooks([_show_retry])
    path, wanted = located.path, located.wanted
    if not located.is_present:
        with _shown_progress(reference) as on_bytes:
            path = fetch(located, models_dir, on_bytes)
    elif isinstance(wanted, CatalogEntry) and (actual := sha256_of(path)) != wanted.sha256:
        raise BadModelFile(f"{path} is not {wanted.name}: its sha256 is {actual}, not {wanted.sha256}; delete it")
    click.echo(path.absolute())


@models.command("path")
@click.argument("reference", metavar="MODEL")
@where
def print_path(reference: str, models_dir: Path, catalog: Path | None) -> None:
    """Print the path of MODEL and nothing else; exit 1 if it is not here."""
    located = locate(reference, models_dir, load_catalog(catalog))
    if not located.is_present:
        raise not_here(reference)
    click.echo(located.path.absolute())


@models.command("verify")
@click.argument("name", required=False)
@where
def verify_models(name: str | None, models_dir: Path, catalog: Path | None) -> None:
    """Compare the sha256 of one model, or of all that are here, with the catalogue; exit 1 if one differs."""
    entries = _chosen(name, models_dir, load_catalog(catalog))
    if not entries:
        click.echo(f"no model of the catalogue is in {models_dir}", err=True)
    wrong = [entry.file for entry in entries if not _is_verified(entry, models_dir)]
    if wrong:
        raise BadModelFile(f"not the catalogue's files: {', '.join(wrong)} in {models_dir}; delete and pull them again")


def _row(entry: CatalogEntry, models_dir: Path) -> tuple[str, str, str, str]:
    path = models_dir / entry.file
    size_bytes = path.stat().st_size if path.is_file() else entry.size_bytes
    return entry.name, decimal(size_bytes) if size_bytes else "-", entry.license, "yes" if path.is_file() else "no"


def _chosen(name: str | None, models_dir: Path, catalog: Catalog) -> list[CatalogEntry]:
    if name is None:
        return [entry for entry in catalog.entries if (models_dir / entry.file).is_file()]
    entry = catalog.find(name)
    if entry is None:
        hint = unknown_name(name, [entry.name for entry in catalog.entries])
        raise ModelNotFound(f"{name!r} is not in the catalogue, so no digest is known for it; {hint}")
    if not (models_dir / entry.file).is_file():
        raise not_here(name)
    return [entry]


def _is_verified(entry: CatalogEntry, models_dir: Path) -> bool:
    try:
        actual = sha256_of(models_dir / entry.file)
    except OSError as error:
        raise BadModelFile(f"{models_dir / entry.file} cannot be read: {error.strerror}") from error
    is_right = actual == entry.sha256
    click.echo(f"{entry.name}: {'ok' if is_right else f'sha256 is {actual}, expected {entry.sha256}'}")
    return is_right


def _quarters(name: str) -> OnBytes:
    """Progress for a log: one line whenever a quarter is reached. The next file begins again at the start."""
    n_shown, last_bytes = -1, 0

    def on_bytes(done_bytes: int, total_bytes: int | None) -> None:
        nonlocal n_shown, last_bytes
        if done_bytes < last_bytes:
            n_shown = -1
        last_bytes = done_bytes
        n_done = min(4, 4 * done_bytes // total_bytes) if total_bytes else 0
        if n_done > n_shown:
            n_shown = n_done
            share = f"{100 * done_bytes // total_bytes} %" if total_bytes else "started"
            of_total = f" of {decimal(total_bytes)}" if total_bytes else ""
            click.echo(f"{name}: {share} ({decimal(done_bytes)}{of_total})", err=True)

    return on_bytes


@contextmanager
def _shown_progress(name: str) -> Iterator[OnBytes]:
    """A bar on a terminal, a few lines elsewhere; on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _quarters(name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


def _show_retry(details: stamina.instrumentation.RetryDetails) -> None:
    reason = " ".join(str(details.caused_by).split()) or type(details.caused_by).__name__
    click.echo(f"{reason}; trying again in {details.wait_for:.1f} s", err=True)
