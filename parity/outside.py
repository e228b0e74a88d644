"""A running server judged from outside: the levels of a parity run that an HTTP client can ask for, on any device.

The reference is a file of logits; neither PyTorch nor the served file is needed.
"""

import worker.llama  # noqa: F401, I001 - before numpy, which brings another C++ library
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from client.worker import UNANSWERED
from parity import corpus
from parity.bounds import Bounds
from parity.case import Say, open_logits
from parity.compare import compare_reported, side_by_side, summarise
from parity.corpus import HardText
from parity.evidence import Greedy, keys_of
from parity.levels import generation, logits, serving, tokenizer
from parity.logits_file import LogitsFile
from parity.report import LEVELS, Check, Level, ModelFile, ReferenceUsed, judged, not_run
from parity.servers import N_TOP, Message, Server
from parity.setups import evaluated, opened
from parity.references import Subject
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates, Rendered
from worker.errors import UsageError
from worker.host import sha256_of
from worker.llama.model import Model
from worker.models.facts.info import ModelInfo
from worker.wire.prompts import Conversation

UNSEEN: Final = {
    "weights": "a server does not expose its weights",
    "checkpoints": "a server does not expose the numbers inside its layers",
    "sampling": "a server does not report a whole row; level serving judges the draws of its seeds",
}
"""The levels that are not run, and why they cannot be judged from outside."""

CONVERSATIONS: Final[tuple[tuple[Message, ...], ...]] = (
    ({"role": "user", "content": "Which river flows through Cairo?"},),
    (
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Is a whale a fish?\nThink first."},
    ),
    (
        {"role": "user", "content": "Write `x` twice.  "},
        {"role": "assistant", "content": "x x"},
        {"role": "user", "content": "  Und jetzt auf Deutsch: ä, ß, 你好?"},
    ),
)


@dataclass(frozen=True, slots=True)
class Served:
    """The judged server, as an evidence.Judged."""

    name: str
    file_type: str
    greedy: Greedy
    is_source: bool

    def keys(self, level: str, what: str) -> tuple[str, str]:
        """See `keys_of`."""
        return keys_of(self.file_type, level, what, is_source=self.is_source)

    def allowances(self, level: str, what: str) -> tuple[str, ...]:  # noqa: ARG002 - nothing is allowed at any
        """None: a server does not prove which caches and device it computes with."""
        return ()


@dataclass(frozen=True, slots=True)
class OwnFile:
    """The facts in the file that is said to be served."""

    prompts: tuple[str | None, ...] = (None,) * len(CONVERSATIONS)
    """The prompts that its template makes from CONVERSATIONS; None if it fails, or if the file is not here."""
    ends: frozenset[int] = frozenset()
    """The vocabulary's end tokens."""

    @classmethod
    def read(cls, info: ModelInfo) -> "OwnFile":
        """Raises: ModelLoadFailed, InsufficientMemory."""
        with opened(info.path) as model:
            return cls(tuple(_rendered(info, model)), frozenset(model.ends.tolist()))


@dataclass(slots=True, kw_only=True)
class Outside:
    """Made by `of`. `transcript` grows when the serving level runs."""

    server: Server
    path: Path
    reference: LogitsFile
    bounds: Bounds
    own: OwnFile
    is_source: bool
    """True if the reference's weights are those of the file that is said to be served."""
    n_tokens: int
    """The requested number of tokens of the evaluation text."""
    prompts: Sequence[str]
    """The prompts of the serving level."""
    transcript: tuple[serving.Record, ...] = ()

    @classmethod
    def of(
        cls,
        server: Server,
        path: Path,
        subject: Subject | None,
        bounds: Bounds,
        *,
        n_tokens: int,
        prompts: Sequence[str] | None = None,
    ) -> "Outside":
        """`path`: the file of logits. `subject`: the file that is said to be served, where it is here; without it the
        server is taken to serve what the reference was made from.

        Raises: UsageError for a file of logits that is none, or one of another text or vocabulary.
        """
        reference = open_logits(path)
        facts, made_from = reference.provenance, reference.provenance.made_from_sha256
        if server.facts.n_vocab not in (0, facts.n_vocab):
            raise UsageError(
                f"the reference has a vocabulary of {facts.n_vocab} tokens, what is served at that URL one of"
                f" {server.facts.n_vocab}: they are not the same model"
            )
        return cls(
            server=server,
            path=path,
            reference=reference,
            bounds=bounds,
            own=OwnFile.read(subject.info) if subject else OwnFile(),
            is_source=made_from == subject.sha256 if subject else bool(made_from),
            n_tokens=n_tokens,
            prompts=corpus.prompts() if prompts is None else prompts,
        )

    @property
    def model(self) -> ModelFile:
        """The facts about the model that the server reports."""
        facts = self.server.facts
        return ModelFile(facts.model, "not reported", facts.size_bytes, facts.quant_kind, "not reported")

    @property
    def used(self) -> ReferenceUsed:
        return ReferenceUsed("logits", self.path.name, sha256_of(self.path))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters for the report."""
        weights = "those of the served file" if self.is_source else "others than the served file's"
        return {
            "judged": "from outside, over HTTP; the machine is the one that asked",
            "server": self.server.facts.software,
            "the reference's weights": f"taken for {weights}",
        }

    def levels(self, names: Sequence[str], say: Say) -> Iterator[Level]:
        """All of LEVELS, each when it is done. A server that does not answer as it should fails the level."""
        steps: dict[str, Callable[[], Level]] = {
            "tokenizer": self._tokenizer,
            "logits": self._logits,
            "generation": self._generation,
            "serving": self._serving,
        }
        for name in LEVELS:
            if name not in names:
                yield not_run(name, "not asked for")
            elif name in UNSEEN:
                yield not_run(name, f"cannot be judged from outside: {UNSEEN[name]}")
            else:
                say(f"level {name}")
                began_s = time.perf_counter()
                yield replace(self._answered(name, steps[name]), seconds=time.perf_counter() - began_s)

    def _answered(self, name: str, step: Callable[[], Level]) -> Level:
        try:
            return step()
        except UNANSWERED as error:
            return Level(name, "fail", f"the server did not answer as it should: {str(error) or type(error).__name__}")

    def _tokenizer(self) -> Level:
        """The check of the texts that JSON can carry, and of the rendered conversations."""
        sent = [pair for pair in zip(corpus.hard_texts(), self.reference.hard_ids, strict=True) if _is_utf8(pair[0])]
        level = tokenizer.run(
            lambda data: self.server.tokenize(data.decode()),
            [ids for _, ids in sent],
            [text for text, _ in sent],
            self.bounds,
            piece=lambda token: self.server.text([token]).encode(),
            joined=lambda tokens: self.server.text(tokens).encode(),
        )
        conversations = list(self._conversations())
        n_left_out = len(self.reference.hard_ids) - len(sent)
        said = f"{level.summary}; {n_left_out} texts that are no UTF-8 cannot be sent as JSON"
        said += (
            "" if conversations else "; what conversations become is not judged: --model names no file with a template"
        )
        return judged(level.name, said, [*level.checks, *conversations], tables=level.tables)

    def _conversations(self) -> Iterator[Check]:
        expected = [pair for pair in zip(CONVERSATIONS, self.own.prompts, strict=True) if pair[1] is not None]
        if not expected:
            return
        others = [(want, got) for each, want in expected if (got := self.server.render(each)) != want]
        note = f"the file's template writes {others[0][0]!r}, the server {others[0][1]!r}" if others else ""
        what = f"of {len(expected)} conversations, those that become another prompt than the file's template makes"
        yield self.bounds.check(what, len(others), "tokenizer.conversations", note=note)

    def _logits(self) -> Level:
        windows = []
        for number in evaluated(self.reference, self.n_tokens):
            tokens = self.reference.windows[number].tokens
            known = [self.reference.known(number, position) for position in range(len(tokens))]
            windows.append(compare_reported(known, self.server.rows(tokens), tokens[1:]))
        summary, served = summarise(windows), self._served
        said = (
            f"KL ≥ {summary.kl_mean.value:.2g}, top-1 {summary.top1.value:.2%}, "
            f"perplexity × {summary.perplexity_ratio.value:.4f} over {summary.n_positions} positions"
        )
        table = side_by_side("Log-probabilities against the reference", {served.name: summary}, _NOTE)
        return judged("logits", said, list(logits.of_file(summary, served, self.bounds)), tables=[table])

    def _generation(self) -> Level:
        return generation.run(
            self.reference, self.bounds, file=self._served, piece=lambda token: self.server.text([token])
        )

    def _serving(self) -> Level:
        expected = serving.Expected(ends=self.own.ends)
        level, self.transcript = serving.run(self.server.worker, self.prompts, expected, self.bounds)
        return level

    @property
    def _served(self) -> Served:
        return Served("the served file", self.server.facts.quant_kind, self.server.greedy, self.is_source)


_NOTE = (
    f"A server reports the {N_TOP} most probable tokens of a row and the next one. The most probable tokens and "
    "perplexity are exact. KL divergence, in nats, reference before server, is a lower bound: all tokens that "
    "are not known on both sides count as one or two. Errors are of log-probabilities."
)


def _is_utf8(text: HardText) -> bool:
    try:
        text.data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rendered(info: ModelInfo, model: Model) -> Iterator[str | None]:
    """The prompts that the file's own template makes from CONVERSATIONS."""
    try:
        templates = ChatTemplates(
            info.chat_template or "",
            info.chat_template_for_tools,
            names=ControlNames(model.controls),
            tokens=model.template_tokens,
            variables={},
        )
    except BrokenTemplate:
        yield from [None] * len(CONVERSATIONS)
        return
    for conversation in CONVERSATIONS:
        read = templates.read(Conversation(messages=msgspec.json.encode(conversation).decode()))
        yield read.text if isinstance(read, Rendered) else None
