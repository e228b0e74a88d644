"""Reference checkpoints: where one lies, what it was made from, and which one belongs to a model.

Weights that can hold code (pickles) and code are never fetched.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from worker.errors import DownloadFailed, UsageError, WorkerError
from worker.host import sha256_of
from worker.models.downloads.hub import SourceFailed, snapshot
from worker.models.facts.info import ModelInfo, read_info

CHECKPOINT: Final = "checkpoint"
LOGITS: Final = "logits.safetensors"
"""The files in a model's folder: the checkpoint that was made from it, and the reference's logits."""

_CHOSEN: Final = "reference.json"
_ORIGIN: Final = "llorch-parity.json"

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"(?:hf:)?(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?")
_FILES = ("*.safetensors", "*.json", "tokenizer*", "*.model", "*.jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The GGUF that is judged, and with what means."""

    info: ModelInfo
    sha256: str
    n_threads: int
    work: Path
    """A folder for intermediate files, the caller's to remove."""

    @classmethod
    def of(cls, path: Path, *, n_threads: int, work: Path) -> "Subject":
        """Reads the whole file for its digest. Raises: BadModelFile; UsageError for a model in several files."""
        info = read_info(path)
        if len(info.part_paths) > 1:
            raise UsageError(
                f"{path} is one of {len(info.part_paths)} files: merge them with llama-gguf-split --merge, then judge"
                " the one file"
            )
        return cls(info=info, sha256=sha256_of(path), n_threads=n_threads, work=work)


class Origin(msgspec.Struct, frozen=True):
    """The GGUF that a checkpoint was made from: its name without its folder, and its digest; both are empty for a
    checkpoint that we did not make."""

    made_from: str = ""
    sha256: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """The checkpoint that `parity reference` took for a model."""

    folder: Path
    name: str
    """The name for reports: a hub id says more than the name of its snapshot's folder."""


# ── one checkpoint ───────────────────────────────────────────────────────────────────────────────


def given(reference: str) -> Chosen:
    """The user's reference: a file of logits, or a checkpoint. Raises: see `checkpoint_folder`."""
    path = Path(reference)
    # Of a path only the last part is anyone's business.
    return Chosen(path if path.is_file() else checkpoint_folder(reference), path.name if path.exists() else reference)


def checkpoint_folder(ref: str) -> Path:
    """`ref` is a folder that exists, else a hub id: `org/repo[@revision]`, `hf:` before it or not.

    Raises: UsageError for what is neither, or has no config.json; DownloadFailed where the hub does not give it.
    """
    folder = Path(ref)
    if not folder.is_dir():
        folder = _fetched(ref)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{ref} is not a checkpoint: it has no config.json")
    return folder


def catalogued(repo: str, models_dir: Path, say: Callable[[str], None]) -> Chosen | None:
    """The original checkpoint that the catalogue names for a model: the folder ORG/REPO in `models_dir`, else what the
    hub's cache has or the hub gives. None if neither has it; then `say` gets the reason."""
    folder = models_dir / repo
    try:
        if not folder.is_dir():
            say(f"the original checkpoint: {repo}, from the hub or its cache")
            folder = _fetched(repo)
        return Chosen(checkpoint_folder(str(folder)), repo)
    except WorkerError as error:
        say(f"{error}; the reference is made from the GGUF instead, so what quantisation cost is not measured")
        return None


def write_origin(gguf: Path, folder: Path) -> None:
    """Say in the checkpoint in `folder` that it was made from `gguf`."""
    (folder / _ORIGIN).write_bytes(msgspec.json.encode(Origin(gguf.name, sha256_of(gguf))))


def made_from(folder: Path) -> Origin:
    """The checkpoint's note of its origin. Raises: UsageError if the note cannot be read."""
    try:
        return msgspec.json.decode((folder / _ORIGIN).read_bytes(), type=Origin)
    except FileNotFoundError:
        return Origin()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{folder}/{_ORIGIN} cannot be read: {error}") from None


def checkpoint_digest(folder: Path) -> str:
    """sha256 over the names and digests of its weights, config and tokenizer files."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json", ".model", ".jinja"):
            total.update(f"{path.name} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def _fetched(ref: str) -> Path:
    match = _HUB_ID.fullmatch(ref)
    if match is None:
        raise UsageError(f"{ref!r} is neither a checkpoint folder nor a hub id: write DIR or org/repo[@revision]")
    try:
        return snapshot(match["repo"], match["revision"] or "main", _FILES)
    except SourceFailed as error:
        raise DownloadFailed(f"{ref} is no folder here, and the hub does not give it: {error}") from error


# ── a model's ────────────────────────────────────────────────────────────────────────────────────


def folder_for(subject: Subject, root: Path) -> Path:
    """The folder for the references of a model: another file of the same name has another folder."""
    return root / f"{subject.info.path.stem}-{subject.sha256[:12]}"


def is_made_from(checkpoint: Path, subject: Subject) -> bool:
    """True if the folder holds the model de-quantised."""
    return checkpoint.is_dir() and made_from(checkpoint).sha256 == subject.sha256


def remember(chosen: Chosen, folder: Path) -> None:
    """Leave in a model's folder which checkpoint `found` is to give."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CHOSEN).write_bytes(msgspec.json.encode(Chosen(chosen.folder.absolute(), chosen.name), enc_hook=str))


def found(subject: Subject, root: Path) -> Chosen:
    """The reference of the last `parity reference` for the model. Raises: UsageError that says how to make one."""
    folder = folder_for(subject, root)
    try:
        chosen = msgspec.json.decode((folder / _CHOSEN).read_bytes(), type=Chosen, dec_hook=_path)
    except (OSError, msgspec.DecodeError):
        chosen = Chosen(folder / CHECKPOINT, CHECKPOINT)
    is_own = chosen.folder == folder.absolute() / CHECKPOINT or chosen.folder == folder / CHECKPOINT
    if not chosen.folder.is_dir() or (is_own and not is_made_from(chosen.folder, subject)):
        raise UsageError(
            f"there is no reference for {subject.info.path.name} yet: make one with `llorch-worker parity reference`,"
            " or give --reference DIR"
        )
    return chosen


def _path(_: type, text: str) -> Path:
    return Path(text)
