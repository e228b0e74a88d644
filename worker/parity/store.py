"""Where references are kept, and how one is made or found: `<folder>/checkpoint` and `<folder>/logits.safetensors`.

Owns the layout of that folder and when what is there still serves. Refuses to know what is compared.
"""

import tempfile
from pathlib import Path
from typing import Final

from worker.errors import UsageError
from worker.parity import corpus
from worker.parity.case import Say, Subject, checkpoint_digest, hard_ids_of, reference_rows
from worker.parity.checkpoint_source import checkpoint_folder
from worker.parity.evidence import SHORT
from worker.parity.logits_file import LogitsFile, Provenance, write_logits_file
from worker.parity.origin import made_from
from worker.parity.provenance import now_rfc3339, versions

CHECKPOINT: Final = "checkpoint"
LOGITS: Final = "logits.safetensors"


def folder_for(subject: Subject, root: Path) -> Path:
    """Of a reference that is made from the model itself: another file of the same name has another folder."""
    return root / f"{subject.info.path.stem}-{subject.sha256[:12]}"


def found(subject: Subject, root: Path) -> Path:
    """The checkpoint that `make_checkpoint` left for the model. Raises: UsageError that says how to make it."""
    folder = folder_for(subject, root) / CHECKPOINT
    if not _is_of(folder, subject):
        raise UsageError(
            f"there is no reference for {subject.info.path.name} yet: make one with `llorch-worker parity reference`,"
            " or give --reference DIR"
        )
    return folder


def given(reference: str) -> Path:
    """A checkpoint folder, a hub id's snapshot, or a file of reference logits. Raises: UsageError."""
    path = Path(reference)
    return path if path.is_file() else checkpoint_folder(reference)


def make_checkpoint(subject: Subject, folder: Path, say: Say) -> Path:
    """The model de-quantised into a SafeTensors checkpoint, unless it is there already."""
    checkpoint = folder / CHECKPOINT
    if not _is_of(checkpoint, subject):
        from worker.parity.reference.checkpoint import dequantise  # noqa: PLC0415 - PyTorch: an extra, slow to import

        say(f"de-quantising {subject.info.path.name}")
        dequantise(subject.info.path, checkpoint)
    return checkpoint


def make_logits(checkpoint: Path, folder: Path, *, n_tokens: int, n_threads: int, work: Path, say: Say) -> Path:
    """The file of reference logits of a checkpoint, unless it is there already."""
    path = folder / LOGITS
    digest = checkpoint_digest(checkpoint)
    if path.is_file() and _serves(path, digest, n_tokens):
        return path
    from worker.parity.reference.model import Reference  # noqa: PLC0415 - as above

    say("the reference: PyTorch reads the checkpoint")
    reference = Reference.open(checkpoint, n_threads=n_threads)
    full = reference_rows(reference, work, n_tokens=n_tokens, say=say)
    origin = made_from(checkpoint)
    provenance = Provenance(
        made_from=origin.made_from,
        made_from_sha256=origin.sha256,
        checkpoint_sha256=digest,
        text_digest=corpus.digest(),
        dtype=reference.facts.dtype,
        n_vocab=reference.facts.vocab_size,
        model_type=reference.facts.model_type,
        versions=versions(),
        created=now_rfc3339(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        whole = Path(partial) / LOGITS
        write_logits_file(whole, full, hard_ids_of(reference), provenance)
        whole.rename(path)
    return path


def _is_of(checkpoint: Path, subject: Subject) -> bool:
    return checkpoint.is_dir() and made_from(checkpoint).sha256 == subject.sha256


def _serves(path: Path, digest: str, n_tokens: int) -> bool:
    """Whether the file holds what would be computed now."""
    try:
        file = LogitsFile.open(path)
    except UsageError:
        return False
    n_windows = sum(window.kind == "short" for window in file.windows)
    known = (file.provenance.checkpoint_sha256, file.provenance.text_digest)
    return known == (digest, corpus.digest()) and n_windows >= n_tokens // SHORT
