"""Questions about tokens, which the engine's intake answers while steps run on.

front  ── Tokenize, Detokenize ──▶  engine  ── Tokenized or Detokenized, or Untokenized ──▶  front
"""

from typing import NewType

from worker.wire.jobs import Frame, Prompt, TokenId
from worker.wire.refusals import Violation

QuestionKey = NewType("QuestionKey", int)
"""The front's internal number for a question about tokens, never reused."""


class Tokenize(Frame, frozen=True, kw_only=True):
    """Asks for the tokens of a prompt. The intake thread answers with Tokenized or Untokenized while steps run on."""

    question: QuestionKey
    prompt: Prompt
    add_special: bool = True
    """True if BOS comes first if the model wants it; for a text only."""
    parse_special: bool = True
    """True if names of special tokens are parsed as these tokens; for a text only."""


class Detokenize(Frame, frozen=True, kw_only=True):
    """Asks for the text of tokens, special ones by their names. The intake thread answers with Detokenized, or with
    Untokenized if an id is outside the vocabulary."""

    question: QuestionKey
    tokens: tuple[TokenId, ...]


class Tokenized(Frame, frozen=True, kw_only=True):
    """The tokens and the text of a prompt."""

    question: QuestionKey
    tokens: tuple[TokenId, ...]
    text: str
    """The prompt's text; for a conversation, the text that the template made of it."""


class Untokenized(Frame, frozen=True, kw_only=True):
    """The reasons why a question has no answer, at least one."""

    question: QuestionKey
    violations: tuple[Violation, ...]


class Detokenized(Frame, frozen=True, kw_only=True):
    question: QuestionKey
    text: str
    """U+FFFD stands for bytes that are no whole character."""
