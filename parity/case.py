"""The judged model and all numbers of the reference, gathered once before the levels run.

Two ways to a case: from a checkpoint, which PyTorch computes now, or from a file of reference logits, which needs
neither. A part that is missing is None.
"""

import worker.llama  # isort: skip  # noqa: F401 - before numpy, which brings a C++ library that some builds die of
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from parity import corpus
from parity.evidence import LONG, SHORT, FullLogits, Kind, ReferenceLogits, Window
from parity.f32_copy import Tensors, write_f32_copy
from parity.levels import checkpoints
from parity.levels.checkpoints import Expected
from parity.llama.quantise import quantise
from parity.logits_file import LogitsFile, Provenance, write_logits_file
from parity.naming import not_comparable
from parity.provenance import now_rfc3339, versions
from parity.references import CHECKPOINT, LOGITS, Subject, checkpoint_digest, is_made_from, made_from
from parity.report import ReferenceUsed
from worker.errors import UsageError
from worker.host import sha256_of

if TYPE_CHECKING:
    from parity.reference.model import Reference

Say = Callable[[str], None]
"""A function that gets the name of each step as it begins."""

_N_END_TO_END = 16
_LENGTHS: tuple[tuple[Kind, int], ...] = (("short", SHORT), ("long", LONG))
_LONGEST_PROMPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model and one reference."""

    subject: Subject
    used: ReferenceUsed
    reference: ReferenceLogits
    hard_ids: Sequence[Sequence[int]]
    """The reference tokenizer's ids of corpus.hard_texts()."""
    is_source: bool
    """True if the reference's weights are this file's, de-quantised."""
    tensors: Tensors | None = None
    expected: Expected | None = None
    """The reference's numbers in every layer, for the llama family from a checkpoint."""
    f32_copy: Path | None = None
    """The model with the reference's weights in F32: for an architecture whose tensors' names in a checkpoint are not
    known here it is the model's own file, where that is F32 or the reference was made from it."""


def from_checkpoint(subject: Subject, folder: Path, name: str, *, n_tokens: int, say: Say) -> Case:
    """PyTorch computes everything now; it is not needed afterwards. `name`: the checkpoint's, for reports; `n_tokens`:
    of the evaluation text.

    Raises: UsageError where the folder is no checkpoint, PyTorch is missing, or the text is too short.
    """
    from parity.reference.model import Reference  # noqa: PLC0415 - PyTorch: an extra, and slow to import
    from parity.reference.tensors import CheckpointTensors  # noqa: PLC0415 - as above

    say("the reference: PyTorch reads the checkpoint")
    reference = Reference.open(folder, n_threads=subject.n_threads)
    _check_vocabulary(subject, reference.facts.vocab_size)
    full = _reference_rows(reference, subject.work, n_tokens=n_tokens, say=say)
    hard_ids = _hard_ids_of(reference)
    tensors = CheckpointTensors.open(folder)
    origin = made_from(folder)
    name = f"{origin.made_from}, de-quantised" if origin.made_from else name
    why_no_copy = not_comparable(subject.info)
    f32_copy = None
    if why_no_copy is None:
        say("the F32 copy: the reference's weights as a GGUF")
        f32_copy = subject.work / "f32-copy.gguf"
        write_f32_copy(subject.info.path, tensors, f32_copy)
    elif origin.sha256 == subject.sha256:
        f32_copy = _de_quantised(subject, say)
    elif subject.info.quant_kind == "F32":
        f32_copy = subject.info.path
    return Case(
        subject=subject,
        used=ReferenceUsed("checkpoint", name, checkpoint_digest(folder)),
        reference=full,
        hard_ids=hard_ids,
        is_source=origin.sha256 == subject.sha256,
        tensors=tensors,
        expected=_expected(reference, full) if why_no_copy is None else None,
        f32_copy=f32_copy,
    )


def from_logits_file(subject: Subject, path: Path, *, say: Say) -> Case:
    """The case from a file of logits, without PyTorch and the checkpoint. If the file was made from this GGUF, the F32
    copy is the GGUF de-quantised.

    Raises: UsageError if the file holds no logits, or is of another text or vocabulary.
    """
    file = open_logits(path)
    _check_vocabulary(subject, file.provenance.n_vocab)
    is_source = file.provenance.made_from_sha256 == subject.sha256
    return Case(
        subject=subject,
        used=ReferenceUsed("logits", path.name, sha256_of(path)),
        reference=file,
        hard_ids=file.hard_ids,
        is_source=is_source,
        f32_copy=_de_quantised(subject, say) if is_source else None,
    )


def _de_quantised(subject: Subject, say: Say) -> Path:
    say("the F32 copy: the model de-quantised")
    path = subject.work / "f32-copy.gguf"
    quantise(subject.info.path, path, "F32", n_threads=subject.n_threads)
    return path


def open_logits(path: Path) -> LogitsFile:
    """Reference logits of the texts that are compared now. Raises: UsageError for a file that is none of them."""
    file = LogitsFile.open(path)
    if file.provenance.text_digest != corpus.digest():
        raise UsageError(f"{path} was made with other texts: make it again with `llorch-worker parity reference`")
    return file


def compared(case: Case) -> dict[str, str]:
    """The part of the text that the reference covers, for the report."""
    n_tokens = dict.fromkeys(get_args(Kind), 0)
    for window in case.reference.windows:
        n_tokens[window.kind] += len(window.tokens)
    return {f"tokens in {kind} windows": str(n) for kind, n in n_tokens.items()}


# ── a model's reference ──────────────────────────────────────────────────────────────────────────


def make_checkpoint(subject: Subject, folder: Path, say: Say) -> Path:
    """The model de-quantised into a SafeTensors checkpoint, unless it is there already."""
    checkpoint = folder / CHECKPOINT
    if not is_made_from(checkpoint, subject):
        from parity.reference.checkpoint import dequantise  # noqa: PLC0415 - PyTorch: an extra, slow to import

        say(f"de-quantising {subject.info.path.name}")
        dequantise(subject.info.path, checkpoint)
    return checkpoint


def make_logits(checkpoint: Path, folder: Path, *, n_tokens: int, n_threads: int, work: Path, say: Say) -> Path:
    """The file of reference logits of a checkpoint, unless it is there already."""
    path = folder / LOGITS
    digest = checkpoint_digest(checkpoint)
    if path.is_file() and _serves(path, digest, n_tokens):
        return path
    from parity.reference.model import Reference  # noqa: PLC0415 - as above

    say("the reference: PyTorch reads the checkpoint")
    reference = Reference.open(checkpoint, n_threads=n_threads)
    full = _reference_rows(reference, work, n_tokens=n_tokens, say=say)
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
        write_logits_file(whole, full, _hard_ids_of(reference), provenance)
        whole.rename(path)
    return path


def _serves(path: Path, digest: str, n_tokens: int) -> bool:
    """True if the file has the logits that a new run would compute."""
    try:
        file = LogitsFile.open(path)
    except UsageError:
        return False
    n_windows = sum(window.kind == "short" for window in file.windows)
    known = (file.provenance.checkpoint_sha256, file.provenance.text_digest)
    return known == (digest, corpus.digest()) and n_windows >= n_tokens // SHORT


# ── what is looked at, and what the reference says ───────────────────────────────────────────────


def windows_of(ids: Sequence[int], kind: Kind, length: int, bos: int | None) -> list[Window]:
    """`ids` in windows of `length`, what remains at the end left out; `bos` is one more token in front of each."""
    front = () if bos is None else (bos,)
    starts = range(0, len(ids) - length + 1, length)
    return [Window(kind, (*front, *ids[start : start + length])) for start in starts]


def plan_windows(
    reference: "Reference", text: str, prompts: Sequence[str], *, n_tokens: int = 4096, n_continued: int = 64
) -> list[Window]:
    """The first `n_tokens` tokens of `text` as short windows and again as long ones, then a continuation per prompt.

    Prompts are cut to the length of the shortest, at most 32 tokens, and continued greedily by `n_continued`.
    Raises: UsageError where the text has fewer tokens, or `n_tokens` would be no whole window.
    """
    ids = reference.tokenize(text)
    if len(ids) < n_tokens:
        raise UsageError(f"the text has {len(ids)} tokens in this model's vocabulary; {n_tokens} are needed")
    if n_tokens < SHORT:
        raise UsageError(f"{n_tokens} tokens are too few for a window: at least {SHORT} are needed")
    bos = reference.facts.bos
    short, long = (windows_of(ids[:n_tokens], kind, length, bos) for kind, length in _LENGTHS)
    return [*short, *long, *_continuations(reference, prompts, n_continued)]


def gather(reference: "Reference", windows: Sequence[Window], folder: Path) -> FullLogits:
    """Every row of every window, computed one window at a time and kept in `folder`."""

    def rows(window: Window) -> NDArray[np.float32]:
        return reference.logits(window.tokens).astype(np.float32)

    return FullLogits.make(folder, windows, rows)


def _continuations(reference: "Reference", prompts: Sequence[str], n_continued: int) -> list[Window]:
    if not prompts:
        return []
    front = [] if reference.facts.bos is None else [reference.facts.bos]
    ids = [front + reference.tokenize(prompt) for prompt in prompts]
    n_prompt = min(_LONGEST_PROMPT, *map(len, ids))
    cut = [prompt[:n_prompt] for prompt in ids]
    continued = reference.greedy(cut, n_continued)
    return [Window("continuation", (*prompt, *more), n_prompt) for prompt, more in zip(cut, continued, strict=True)]


def _reference_rows(reference: "Reference", work: Path, *, n_tokens: int, say: Say) -> FullLogits:
    """The reference's logits of all windows, in a folder of `work`."""
    say(f"the reference: {n_tokens} tokens of text, and {len(corpus.prompts())} prompts continued")
    windows = plan_windows(reference, corpus.text(), corpus.prompts(), n_tokens=n_tokens)
    folder = work / "reference"
    folder.mkdir()
    return gather(reference, windows, folder)


def _hard_ids_of(reference: "Reference") -> list[list[int]]:
    """The reference tokenizer's ids of corpus.hard_texts(), in their order."""
    return [reference.tokenize(corpus.decode(hard.data)) for hard in corpus.hard_texts()]


def _expected(reference: "Reference", full: FullLogits) -> Expected:
    """The expected numbers for the beginning of the text: all layers, and the greedy continuation."""
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
