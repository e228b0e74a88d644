"""What a grammar's text must satisfy before anything reads it: size and nesting, found in one linear pass.

Refuses to know: whether it is a grammar, which the engine finds out. Pure; runs on the front's event loop.
"""

import re
from collections.abc import Iterator

from worker.protocol.field_errors import FieldError

MAX_BYTES = 65_536
"""In UTF-8."""
MAX_DEPTH = 64
"""Brackets inside each other. llama.cpp's parser recurses once for each, and dies of 20,000."""

_BRACKET = re.compile(
    r"""
    "[^"\\]*(?:\\.[^"\\]*)*"?            # a string, a token, a comment: brackets in them are text
  | <[^>]*>?
  | \#[^\r\n]*
  | (?P<class>\[[^]\\]*(?:\\.[^]\\]*)*]?)
  | (?P<open>[({])
  | (?P<close>[)}])
    """,
    re.VERBOSE | re.DOTALL,
)


def grammar_errors(grammar: str) -> Iterator[FieldError]:
    """The first limit the text breaks, if any; the text is never echoed."""
    n_bytes = len(grammar.encode())
    if not grammar.strip():
        yield FieldError(field="grammar", constraint="non_empty", message="grammar must not be blank")
    elif n_bytes > MAX_BYTES:
        message = f"grammar must be at most {MAX_BYTES} bytes (got {n_bytes})"
        yield FieldError(field="grammar", constraint=f"max_length({MAX_BYTES})", message=message)
    elif "\0" in grammar:
        message = "grammar must not contain NUL characters: the rest would not be read"
        yield FieldError(field="grammar", constraint="no_nul", message=message)
    elif (depth := nesting(grammar)) > MAX_DEPTH:
        message = f"grammar must nest brackets at most {MAX_DEPTH} deep (got {depth})"
        yield FieldError(field="grammar", constraint=f"max_depth({MAX_DEPTH})", message=message)


def nesting(grammar: str) -> int:
    """How deep `(`, `[` and `{` go, outside of strings, character classes, tokens and comments."""
    depth = deepest = 0
    for found in _BRACKET.finditer(grammar):
        if found.lastgroup == "open":
            depth += 1
            deepest = max(deepest, depth)
        elif found.lastgroup == "class":
            deepest = max(deepest, depth + 1)
        elif found.lastgroup == "close":
            depth = max(depth - 1, 0)
    return deepest
