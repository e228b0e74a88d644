"""A grammar, a JSON schema or a regular expression, compiled and followed by llguidance.

The library never ends the process: what it cannot compile is Unsupported, what becomes too costly is the job's error.
No matcher is kept for a second job: copies share one lexer, and with it its growth, its limits and its end.
"""

import json
import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import llguidance
import llguidance._lib
import numpy as np
from numpy.typing import NDArray

from worker.constraints.gbnf import BadGrammar, TokenOf, check_lark, is_lark, lark_of
from worker.constraints.schema_gaps import gap, has_open_names, plain, readable
from worker.constraints.trial import survives
from worker.constraints.vocabulary import Tokens

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # in the stubs only

Field = Literal["grammar", "json_schema", "regex"]
Notation = Literal["gbnf", "lark", "json_schema", "regex", "calls"]
Mask = NDArray[np.bool_]

MAX_FORCED_BYTES = 65_536
"""The most bytes of a text without a choice in it: as many as a request's constraint. A short grammar can repeat itself
to gigabytes, and to spell a mebibyte takes a second."""


def limits(initial_lexer_fuel: int, step_max_items: int = 5_000) -> llguidance.LLParserLimits:
    """Return the limits for compiling and for each mask. At worst a lexer's first fuel of 250,000 takes 0.2 s;
    a step's fuel of 50,000 takes 0.2 s and 64 MiB. Twice that is given, because an address of IPv6 with a `maxLength`
    needs more than one of them. 20 items take a microsecond, each state of the lexer 0.7 KB.

    Items bound a forced run too, by its lexemes. An object has four at once for each of its optional properties.
    """
    return llguidance.LLParserLimits(
        initial_lexer_fuel=initial_lexer_fuel,
        step_lexer_fuel=100_000,
        step_max_items=step_max_items,
        max_items_in_row=5_000,
        max_lexer_states=20_000,
        max_grammar_size=50_000,
        verbose_errors=False,
    )


LIMITS_OF: dict[Notation, llguidance.LLParserLimits] = {
    # Each character is a lexeme.
    "gbnf": limits(50_000, step_max_items=50_000),
    "lark": limits(50_000),
    "json_schema": limits(250_000),
    "regex": limits(30_000),
    "calls": limits(250_000, step_max_items=50_000),
}
"""The most parts of an expression: n parts can take n² steps at the start, if nothing but the fuel bounds n."""

_TOO_COSTLY = "the constraint is too costly to follow at this point of the text; make it simpler"
_LIMIT_MET = re.compile(r"[Tt]oo many|max is|too complex")
"""The library's words if a limit ends it; its stop reasons do not say."""
_NOTHING_FOLLOWS = "NoExtension"

UNTRIED_BYTES = 4096
"""The largest schema without patterns that is compiled at once; others are tried first (trial.py): nothing bounds the
product of several patterns at one place, or of a thousand alternatives."""
_LIBRARY: str = llguidance._lib.__file__


class Unsupported(ValueError):
    """A constraint that cannot be kept to; the message never quotes it."""


def compiled(tokenizer: llguidance.LLTokenizer, field: Field, text: str, token_of: TokenOf) -> llguidance.LLMatcher:
    """A matcher at the beginning of its text. Raises: Unsupported."""
    make = llguidance.LLMatcher
    if field == "json_schema":
        schema, _, source = enforceable(text)
        return matcher_of(tokenizer, "json_schema", source, lambda error: plain(error, schema))
    if field == "regex":
        return matcher_of(tokenizer, "regex", make.grammar_from_regex(text), _plain)
    try:
        if not is_lark(text):
            return matcher_of(tokenizer, "gbnf", make.grammar_from_lark(lark_of(text, token_of)), _plain)
        check_lark(text)
    except BadGrammar as error:
        raise Unsupported(str(error)) from error
    return matcher_of(tokenizer, "lark", make.grammar_from_lark(text), _plain)


class Enforceable(NamedTuple):
    """A schema that the library enforces, as far as this shows without compiling it."""

    schema: Any
    readable: Any
    """The schema in words that the library understands."""
    source: str
    """The library's grammar."""


def enforceable(text: str) -> Enforceable:
    """Raises: Unsupported."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise Unsupported("it has a number of thousands of digits") from error
    schema = {} if schema is True else schema
    if fault := gap(schema):
        raise Unsupported(fault)
    found, options = readable(schema), json_options(schema)
    try:
        source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(found), overrides=options)
    except ValueError as error:
        raise Unsupported(plain(str(error), schema)) from error
    if (len(text) > UNTRIED_BYTES or '"pattern' in text) and not survives(_LIBRARY, source):
        raise Unsupported("it cannot be compiled in reasonable time and memory; make it simpler")
    return Enforceable(schema, found, source)


def matcher_of(
    tokenizer: llguidance.LLTokenizer, notation: Notation, source: str, in_words: Callable[[str], str]
) -> llguidance.LLMatcher:
    """A matcher of a grammar of the library's; `in_words` words its refusal. Raises: Unsupported."""
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=LIMITS_OF[notation])
    if matcher.is_error():
        raise Unsupported(in_words(matcher.get_error()))
    # What nothing satisfies compiles too, and shows in its first mask.
    matcher.compute_bitmask()
    if matcher.is_error():
        is_empty = matcher.get_error().startswith(_NOTHING_FOLLOWS)
        raise Unsupported("nothing can satisfy it" if is_empty else "it is too large or too complex")
    # An endless text without a choice compiles too, and a very long one, and shows when the first part is followed.
    ahead = matcher.deep_copy()
    is_too_long = len(ahead.compute_ff_bytes()) > MAX_FORCED_BYTES
    if not is_too_long and (forced := ahead.compute_ff_tokens()):
        ahead.consume_tokens(forced)
        ahead.compute_bitmask()
        is_too_long = ahead.is_error() and not ahead.get_error().startswith(_NOTHING_FOLLOWS)
    if is_too_long:
        raise Unsupported("its text begins with a part without a choice that is endless or too long; make it shorter")
    return matcher


def json_options(schema: Any) -> "JsonCompileOptions":
    """JSON as most programs write it: what stands between two values is known then, and need not be computed."""
    options: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    if has_open_names(schema):
        return {**options, "json_allowed_escapes": 'nrbtf\\"'}
    return {**options, "json_allow_general_unicode_escapes": True}


def _plain(error: str) -> str:
    """The library's refusal of a grammar or a regular expression, less what it quotes of them."""
    if found := re.search(r"^error: ([^\n]*)", error, re.MULTILINE):
        return f"a regular expression cannot be read: {found[1]}"
    if "lookarounds" in error:
        return "a regular expression has an anchor or a word boundary where it cannot be enforced"
    if found := re.match(r"(?:at )?(\d+)\((\d+)\): ([^\n\"'(;⟦]*)", error):
        line, column, what = found.groups()
        return f"line {line}, column {column}: {what.strip() or 'this cannot be read'}"
    return "it has no rule named start" if error.startswith("no start rule") else "it is too large or too complex"


class Matcher:
    """A grammar at one point of one text. One that has met a limit stays in error: it allows nothing more, which
    `allowed` reports.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Tokens) -> None:
        self._matcher: llguidance.LLMatcher | None = matcher
        self._vocabulary = vocabulary
        self._is_run_too_long = False

    def allowed(self) -> Mask:
        """bool[n_vocab]: whether the text may go on by a token, or end with it where it is an end of the vocabulary's.

        Tens of microseconds. Raises: ValueError when the constraint is too costly to follow here, or closed.
        """
        if self._is_run_too_long:
            raise ValueError(_TOO_COSTLY)
        vocabulary = self._vocabulary
        bits = vocabulary.bits
        self._open.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        error = self._open.get_error()
        if error and not error.startswith(_NOTHING_FOLLOWS):
            is_limit = _LIMIT_MET.search(error)
            raise ValueError(_TOO_COSTLY if is_limit else "the constraint cannot be followed any further")
        mask: Mask = np.unpackbits(bits.view(np.uint8), count=vocabulary.n_vocab, bitorder="little").view(np.bool_)
        # A grammar can allow "any token but this one", of which the library then takes an end to be one.
        mask[vocabulary.own_ends] = self._open.is_accepting()
        return mask

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        self._open.consume_token(token)

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer spells them; empty where there is a choice, or an end, or
        more than MAX_FORCED_BYTES, which `allowed` reports.
        """
        n_bytes = len(self._open.compute_ff_bytes())
        self._is_run_too_long = n_bytes > MAX_FORCED_BYTES
        return self._open.compute_ff_tokens() if 0 < n_bytes <= MAX_FORCED_BYTES else []

    @property
    def is_over(self) -> bool:
        """True if nothing but an end may follow."""
        return self._open.is_stopped() and not self._open.is_error()

    @property
    def is_failed(self) -> bool:
        """True if it has met a limit, which `allowed` reports."""
        return self._open.is_error()

    def n_allowed(self, tokens: Seq[int]) -> int:
        """Return how many of the tokens, from the first on, may continue the text."""
        return self._open.validate_tokens([*tokens])

    def copy(self) -> "Matcher":
        """The same text once more, for another call of the same job: copies share a lexer."""
        return Matcher(self._open.deep_copy(), self._vocabulary)

    def take_back(self, n_tokens: int) -> None:
        self._open.rollback(n_tokens)

    def close(self) -> None:
        """Free the library's matcher. Idempotent."""
        self._matcher = None

    @property
    def _open(self) -> llguidance.LLMatcher:
        if self._matcher is None:
            raise ValueError("the constraint is closed")
        return self._matcher
