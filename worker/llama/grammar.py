"""Grammars of one model: compiled once, copied per job, asked token by token.

Owns llama.cpp's grammar samplers and the arrays they are asked through. `Grammars` lives on the intake thread; a
`Grammar` is made there and used, then closed, on the step thread. A token the grammar forbids never reaches the
library's accept, which would end the process.
"""

import functools
import hashlib
import re
import time
from collections import OrderedDict
from typing import Any, Literal

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.engine.contract import Submit, TokenId, Violation
from worker.llama.candidates import Candidates
from worker.llama.gbnf import BadGrammar, Rules, read_gbnf
from worker.llama.grammar_cost import check_cost
from worker.llama.library import open_library
from worker.llama.model import Model
from worker.llama.schema import MAX_GBNF_DEPTH, Unsupported, gbnf_of

MAX_COMPILED = 64
"""Grammars kept for the next job that asks for the same."""
MAX_DEPTH = 64
"""Parentheses inside each other in a request's grammar. Our own from a schema have one for each optional item."""
MAX_ACCEPT_S = 0.25
"""CPU time to go on by one token. An ordinary grammar takes microseconds; one that can read a text in more and more
ways takes twice as long with every character, and would hold up every other job."""

_TOKEN_ID = re.compile(r"<\[(\d{1,10})\]>")

Field = Literal["grammar", "json_schema"]


class Grammars:
    """What `LoadedModel.constrain` needs. Freed with the model at the latest."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._compiled: OrderedDict[tuple[Field, bytes], int] = OrderedDict()
        model.close_before(self.close)

    def constrain(self, submit: Submit) -> "Grammar | Violation | None":
        """The job's constraint, which is the caller's to close, or what is wrong with the one it asks for."""
        if submit.grammar is not None:
            return self._constrain("grammar", submit.grammar)
        if submit.json_schema is not None:
            return self._constrain("json_schema", submit.json_schema)
        return None

    def close(self) -> None:
        """Free what is kept; the jobs' copies are theirs. Idempotent."""
        while self._compiled:
            capi.llama_sampler_free(self._compiled.popitem()[1])

    def _constrain(self, field: Field, text: str) -> "Grammar | Violation":
        key = (field, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        if key not in self._compiled:
            try:
                self._compiled[key] = self._from_gbnf(text) if field == "grammar" else self._from_schema(text)
            except BadGrammar as error:
                return Violation("grammar", "gbnf", f"grammar: {error}")
            except Unsupported as error:
                return Violation("json_schema", "supported", f"json_schema {error}")
            if len(self._compiled) > MAX_COMPILED:
                capi.llama_sampler_free(self._compiled.popitem(last=False)[1])
        self._compiled.move_to_end(key)
        copy = capi.llama_sampler_clone(self._compiled[key])
        if not copy:
            raise RuntimeError("llama.cpp cannot copy a grammar")
        return Grammar(copy, self._tokens)

    def _from_gbnf(self, text: str) -> int:
        rules = read_gbnf(text, max_depth=MAX_DEPTH)
        self._check_tokens(rules)
        return self._compile(rules)

    def _from_schema(self, text: str) -> int:
        gbnf = gbnf_of(text)
        try:
            return self._compile(read_gbnf(gbnf, max_depth=MAX_GBNF_DEPTH))
        except BadGrammar as error:
            # Its places are in a text that nobody has seen.
            raise Unsupported(f"makes a grammar that cannot be used: {error.why}") from error

    def _compile(self, rules: Rules) -> int:
        """Raises: BadGrammar. Source: llama_sampler_init_grammar, which gives NULL for what it refuses."""
        check_cost(rules)
        with open_library().watch() as watch:
            handle = capi.llama_sampler_init_grammar(self._model.vocab, rules.text.encode(), b"root")
        if not handle:
            raise BadGrammar(f"llama.cpp refuses it: {watch.last_error or 'it gave no reason'}")
        compiled: int = handle
        return compiled

    def _check_tokens(self, rules: Rules) -> None:
        """Raises: BadGrammar for a token that is not in the vocabulary or has no text, which no answer could have."""
        for text, place in rules.tokens.items():
            if not text.startswith("<["):
                token = self._model.token_of(text)
            else:
                number = _TOKEN_ID.fullmatch(text)
                token = TokenId(int(number[1])) if number else None
            if token is None or token >= self._model.n_vocab:
                raise rules.error(place, "this is no token of the model's vocabulary")
            if not self._tokens.has_text[token]:
                raise rules.error(place, "this token has no text, so no answer can have it")

    @functools.cached_property
    def _tokens(self) -> "_Tokens":
        """Made with the first grammar: it takes a tenth of a second, and few workers see one."""
        return _Tokens(self._model)


class Grammar:
    """A grammar at one point of one job's text: the engine's Constraint and the sampler's Filter."""

    def __init__(self, handle: Any, tokens: "_Tokens") -> None:
        self._handle = handle
        self._tokens = tokens
        self._has_run_wild = False

    def allows(self, token: int) -> bool:
        """Whether the text may go on by `token`, or end with it where it is one of the vocabulary's ends. Microseconds.

        Raises: ValueError when the grammar has run wild (MAX_ACCEPT_S), or it or its model is closed.
        """
        return self._tokens.one_allowed(self._open_handle, token)

    def allowed(self) -> NDArray[np.bool_]:
        """`allows` for every token: bool[n_vocab], the caller's own. Milliseconds. Raises: as `allows`."""
        return self._tokens.all_allowed(self._open_handle)

    def accept(self, token: TokenId) -> None:
        """Raises: ValueError for a token that is not allowed; the library would end the process."""
        if not self.allows(token):
            raise ValueError(f"token {token} is not allowed by the job's grammar")
        began_s = time.thread_time()
        capi.llama_sampler_accept(self._handle, token)
        self._has_run_wild = time.thread_time() - began_s > MAX_ACCEPT_S

    def close(self) -> None:
        if self._handle is not None:
            capi.llama_sampler_free(self._handle)
            self._handle = None

    @property
    def _open_handle(self) -> Any:
        if self._handle is None or not self._tokens.model.is_open:
            raise ValueError("the grammar or its model is closed")
        if self._has_run_wild:
            raise ValueError("the grammar can read this text in too many ways; write it with less ambiguity")
        return self._handle


class _Tokens:
    """What any grammar can be asked about; one set of arrays for all grammars, used on the step thread only."""

    def __init__(self, model: Model) -> None:
        self.model = model
        pieces = [model.piece(TokenId(token)) for token in range(model.n_vocab)]
        # The library takes a control token for its name's letters, and ends a piece at its first NUL.
        self.has_text = np.array([bool(piece) and b"\0" not in piece for piece in pieces])
        self._is_possible = self.has_text.copy()
        self._is_possible[model.ends] = True
        self._all = Candidates(model.n_vocab)
        self._all.ids[:] = np.arange(model.n_vocab)
        self._one = Candidates(1)

    def one_allowed(self, handle: Any, token: int) -> bool:
        if not self._is_possible[token]:
            return False
        self._one.ids[0] = token
        return bool(_left(self._one, handle)[0])

    def all_allowed(self, handle: Any) -> NDArray[np.bool_]:
        allowed: NDArray[np.bool_] = _left(self._all, handle) & self._is_possible
        return allowed


def _left(candidates: Candidates, grammar: Any) -> NDArray[np.bool_]:
    """Which candidates the grammar leaves at their logit; the others it sets to -inf, in place."""
    candidates.logits[:] = 0.0
    candidates.apply(grammar)
    left: NDArray[np.bool_] = candidates.logits == 0.0
    return left
