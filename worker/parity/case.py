"""What is to be judged, and all that the reference says about it: gathered once, before the levels run.

Two ways to a case: from a checkpoint, which PyTorch computes now, or from a file of reference logits, which needs
neither. What a case has not, is None. Owns the intermediate files in the work folder. Refuses to know the levels.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from worker.errors import UsageError
from worker.model.catalog import sha256_of
from worker.model.info import ModelInfo, read_info
from worker.parity import corpus
from worker.parity.evidence import FullLogits, Kind, ReferenceLogits
from worker.parity.f32_copy import Tensors, write_f32_copy
from worker.parity.gather import gather, plan_windows
from worker.parity.levels import checkpoints
from worker.parity.levels.checkpoints import Expected
from worker.parity.llama.quantise import quantise
from worker.parity.logits_file import LogitsFile
from worker.parity.naming import not_comparable
from worker.parity.origin import Origin, made_from
from worker.parity.report import ReferenceUsed

if TYPE_CHECKING:
    from worker.parity.reference.model import Reference

Say = Callable[[str], None]
"""Told what begins now."""

_N_END_TO_END = 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model and one reference."""

    subject: Subject
    used: ReferenceUsed
    reference: ReferenceLogits
    hard_ids: Sequence[Sequence[int]]
    """The reference tokenizer's ids of corpus.hard_texts()."""
    is_source: bool
    """Whether the reference's weights are this very file's, de-quantised."""
    tensors: Tensors | None = None
    expected: Expected | None = None
    """What the reference computes in every layer; for the llama family, from a checkpoint."""
    f32_copy: Path | None = None
    """The model with the reference's weights in F32."""


def from_checkpoint(subject: Subject, folder: Path, name: str, *, n_tokens: int, say: Say) -> Case:
    """PyTorch computes everything now; it is not needed afterwards. `name`: the checkpoint's, for reports; `n_tokens`:
    of the evaluation text.

    Raises: UsageError where the folder is no checkpoint, PyTorch is missing, or the text is too short.
    """
    from worker.parity.reference.model import Reference  # noqa: PLC0415 - PyTorch: an extra, and slow to import
    from worker.parity.reference.tensors import CheckpointTensors  # noqa: PLC0415 - as above

    say("the reference: PyTorch reads the checkpoint")
    reference = Reference.open(folder, n_threads=subject.n_threads)
    _check_vocabulary(subject, reference.facts.vocab_size)
    full = reference_rows(reference, subject.work, n_tokens=n_tokens, say=say)
    hard_ids = hard_ids_of(reference)
    tensors = CheckpointTensors.open(folder)
    origin = made_from(folder)
    why_no_copy = not_comparable(subject.info)
    f32_copy = None
    if why_no_copy is None:
        say("the F32 copy: the reference's weights as a GGUF")
        f32_copy = subject.work / "f32-copy.gguf"
        write_f32_copy(subject.info.path, tensors, f32_copy)
    return Case(
        subject=subject,
        used=ReferenceUsed("checkpoint", _named(origin, name), checkpoint_digest(folder)),
        reference=full,
        hard_ids=hard_ids,
        is_source=origin.sha256 == subject.sha256,
        tensors=tensors,
        expected=_expected(reference, full) if f32_copy else None,
        f32_copy=f32_copy,
    )


def from_logits_file(subject: Subject, path: Path, *, say: Say) -> Case:
    """Without PyTorch and the checkpoint. Where the file was made from this very GGUF, the F32 copy is it de-quantised.

    Raises: UsageError for a file that is none, or one of another text or vocabulary.
    """
    file = LogitsFile.open(path)
    _check_vocabulary(subject, file.provenance.n_vocab)
    if file.provenance.text_digest != corpus.digest():
        raise UsageError(f"{path} was made with other texts: make it again with `llorch-worker parity reference`")
    is_source = file.provenance.made_from_sha256 == subject.sha256
    f32_copy = None
    if is_source:
        say("the F32 copy: the model de-quantised")
        f32_copy = subject.work / "f32-copy.gguf"
        quantise(subject.info.path, f32_copy, "F32", n_threads=subject.n_threads)
    return Case(
        subject=subject,
        used=ReferenceUsed("logits", path.name, sha256_of(path)),
        reference=file,
        hard_ids=file.hard_ids,
        is_source=is_source,
        f32_copy=f32_copy,
    )


def reference_rows(reference: "Reference", work: Path, *, n_tokens: int, say: Say) -> FullLogits:
    """The reference's logits of all windows, in a folder of `work`."""
    say(f"the reference: {n_tokens} tokens of text, and {len(corpus.prompts())} prompts continued")
    windows = plan_windows(reference, corpus.text(), corpus.prompts(), n_tokens=n_tokens)
    folder = work / "reference"
    folder.mkdir()
    return gather(reference, windows, folder)


def hard_ids_of(reference: "Reference") -> list[list[int]]:
    """The reference tokenizer's ids of corpus.hard_texts(), in their order."""
    return [reference.tokenize(corpus.decode(hard.data)) for hard in corpus.hard_texts()]


def _expected(reference: "Reference", full: FullLogits) -> Expected:
    """Of the beginning of the text: all layers, and what the reference goes on with."""
    tokens = full.windows[0].tokens[: checkpoints.N_TOKENS]
    (continuation,) = reference.greedy([tokens], _N_END_TO_END)
    rows = reference.logits([*tokens, *continuation])[len(tokens) - 1 : -1]
    return Expected.of(tokens, reference.activations(tokens), continuation, rows.astype(np.float64))


def _check_vocabulary(subject: Subject, n_vocab: int) -> None:
    if subject.info.vocab_size != n_vocab:
        raise UsageError(
            f"the reference has a vocabulary of {n_vocab} tokens, {subject.info.path.name} one of"
            f" {subject.info.vocab_size}: they are not the same model"
        )


def _named(origin: Origin, name: str) -> str:
    return f"{origin.made_from}, de-quantised" if origin.made_from else name


def checkpoint_digest(folder: Path) -> str:
    """sha256 over the names and digests of its weights, config and tokenizer files."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json", ".model", ".jinja"):
            total.update(f"{path.name} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def compared(case: Case) -> dict[str, str]:
    """How much of the text the reference has, for the report."""
    n_tokens = dict.fromkeys(get_args(Kind), 0)
    for window in case.reference.windows:
        n_tokens[window.kind] += len(window.tokens)
    return {f"tokens in {kind} windows": str(n) for kind, n in n_tokens.items()}
