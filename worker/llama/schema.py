"""JSON schema → GBNF, by the converter that llama-cpp-python ships, less three mistakes that would spoil answers.

The schemas come from the front, which refuses what the converter does not honour and writes the rest plainly
(protocol/json_schema.py). This module bounds what the converter makes of them in this process, and makes sure that what
it raises is an answer to the job. Pure; intake thread. tests/llama/test_schema.py notices when the converter changes.
"""

import json
from typing import Any

from llama_cpp.llama_grammar import PRIMITIVE_RULES, STRING_FORMAT_RULES, SchemaConverter

MAX_GBNF_CHARACTERS = 256 * 1024
"""Four times the largest schema; repetitions, which the converter writes out, could make it a thousand times that."""
MAX_GBNF_DEPTH = 1000
"""Parentheses inside each other. The converter puts each optional item in its own, and llama.cpp takes so many."""

CHARACTER = (
    r'[\x20-\x21\x23-\x5B\x5D-\uD7FF\uE000-\U0010FFFF] | "\\" (["\\/bfnrt] | "u" '
    r"([0-9a-cA-CefEF] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] | [dD] [0-7] [0-9a-fA-F] [0-9a-fA-F]))"
)
"""A character of a JSON string. The converter's own lets control characters through, which no parser takes, and halves
of surrogate pairs, of which two are one character to whoever counts. Not `[^…]`, by which llama.cpp refuses a byte that
could begin both a character and a surrogate."""

PRIMITIVES: dict[str, str] = {
    **{name: rule.content for name, rule in (PRIMITIVE_RULES | STRING_FORMAT_RULES).items()},
    "char": CHARACTER,
}
"""The converter's ready-made rules, by name."""

_RULE_NAME_CHARACTERS = 48
"""A rule is named after the properties that lead to it, and every mention of it is spelled out."""

_CONVERTER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the converter and its JSON decoder raise for a schema they do not expect: they check by `assert` and by luck."""


class Unsupported(ValueError):
    """A schema that cannot be made into a grammar; the message never quotes it."""


def gbnf_of(schema: str) -> str:
    """A grammar of compact JSON (at most one space wherever JSON allows any) that satisfies the schema.

    Raises: Unsupported.
    """
    converter = _Converter()
    try:
        converter.visit(converter.resolve_refs(json.loads(schema), ""), "")
        return str(converter.format_grammar())
    except Unsupported:
        raise
    except _CONVERTER_ERRORS as error:
        raise Unsupported(f"cannot be read by the converter to GBNF ({type(error).__name__})") from error


class _Converter(SchemaConverter):  # type: ignore[misc]  # the binding has no types
    """These methods are called by the converter's own."""

    def __init__(self) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        # In place from the start, so that no property of such a name is taken for one.
        self._rules.update(PRIMITIVES)
        self._n_characters = 0

    def _add_rule(self, name: str, rule: str) -> str:
        n_rules = len(self._rules)
        added = str(super()._add_rule(name[:_RULE_NAME_CHARACTERS], rule))
        # The converter comes back with the same rule for optional properties, a square of their number of times.
        self._n_characters += len(rule) if len(self._rules) > n_rules else 0
        if self._n_characters > MAX_GBNF_CHARACTERS:
            raise Unsupported(f"makes a grammar of more than {MAX_GBNF_CHARACTERS} characters")
        return added

    def _add_primitive(self, name: str, rule: Any) -> str:
        return name if name in PRIMITIVES else self._add_rule(name, rule.content)

    def _format_literal(self, literal: str) -> str:
        """JSON text as a GBNF literal. The converter's own leaves backslashes as they are, which then escape its
        quotes, and asks for \\u escapes outside ASCII, which models do not write.
        """
        plain = json.dumps(json.loads(literal), ensure_ascii=False, allow_nan=False)
        return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
