"""A constraint on parts of an answer: what is free, where it begins, and how far the reasoning may go.

Tracks which part of an answer is constrained: reasoning is free, a whole answer is constrained behind it, a call from
its beginning on. The constraints of the parts come compiled. All that is decided here depends on the tokens alone. Used
on the step thread.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from worker.constraints.constraint import Mask, Matcher
from worker.constraints.text_markers import TextMarker, TextReasoning
from worker.constraints.vocabulary import SPECIAL, Tokens
from worker.engine.channels import CONTENT, Channel, ChannelState, ControlTokens, Transition
from worker.engine.step import Token
from worker.wire.jobs import TokenId


@dataclass(frozen=True, slots=True)
class Calls:
    """The constraint of calls in a free answer."""

    call: Matcher
    """The grammar of calls at its beginning. Each call follows a copy."""
    begins: tuple[TextMarker, ...]
    is_parallel: bool
    """True if other text and other calls may come behind a call."""
    is_anywhere: bool = True
    """False if a call can only begin the answer."""
    is_headed: bool = False
    """True if a call begins in a header or a role."""
    before: bytes = b""
    """The end of the prompt, if a call begins there."""


class _Point(NamedTuple):
    """A point between two tokens."""

    state: ChannelState
    current: int | None = None
    """The number of the constraint that is followed; None if the text is free."""
    n_followed: int = 0
    """The number of tokens that this one has had."""
    n_made: int = 0
    """The number of constraints that have been followed, this one included."""
    tail: bytes | None = b""
    """The last bytes of free text, in which a call may have begun; None if none can begin any more."""
    n_reasoning: int = 0
    has_reasoned: bool = False
    is_thinking: bool = False
    """True in a reasoning whose markers are text."""
    heard: bytes = b""
    """The last bytes of text, in which a marker of such a reasoning may have begun."""
    is_over: bool = False


class AnswerConstraint:
    """The constraint of one answer, at one point. It masks nothing while the text is free."""

    def __init__(
        self,
        tokens: Tokens,
        marks: ControlTokens,
        *,
        whole: Seq[Matcher] = (),
        calls: Calls | None = None,
        unenforced_tools: tuple[int, ...] = (),
        text_markers: TextReasoning | None = None,
        budget: int | None = None,
    ) -> None:
        """`whole` are the constraints of the answer without its reasoning, one after the other; `calls` those of calls
        in a free answer. `unenforced_tools` are the places of tools whose schemas are not enforced. `text_markers` are
        the markers of the reasoning if they are text. `budget` is the most tokens of reasoning.
        """
        self.unenforced_tools = unenforced_tools
        self._tokens = tokens
        self._marks = marks
        self._is_whole = bool(whole)
        self._followed = [*whole]
        self._n_had = [0] * len(whole)
        """The number of tokens that each has had."""
        self._calls = calls
        self._begins = calls.begins if calls is not None else ()
        self._n_tail = max((len(begin.data) - 1 for begin in self._begins), default=0)
        self._text_markers = text_markers
        self._budget = budget
        self._openers = [
            token for token, turn in marks.turns.items() if turn in {Transition.THINK, Transition.NAME_LINE}
        ]
        self._is_given_up = False
        """True if calls are not followed any more, because that was too costly."""
        self.begin(CONTENT)

    def begin(self, state: ChannelState) -> None:
        """Begin in a state. This is called once, before the first token."""
        tail = b"" if self._calls is None else self._calls.before
        self._points = [
            _Point(
                state,
                current=0 if self._is_whole else None,
                n_made=len(self._followed),
                tail=tail,
                is_thinking=state.is_opened and self._text_markers is not None,
            )
        ]

    @property
    def is_masking(self) -> bool:
        """True if the next token is drawn under a mask."""
        point = self._points[-1]
        return point.is_over or (point.current is not None and not _is_free(point))

    def allowed(self) -> Mask | None:
        """bool[n_vocab], as `Matcher.allowed`; None if any token may come. Raises: ValueError as there."""
        if not self.is_masking:
            return None
        point = self._points[-1]
        if point.current is None:
            mask = np.zeros(self._tokens.n_vocab, np.bool_)
            mask[self._tokens.own_ends] = True
            return mask
        try:
            mask = self._followed[point.current].allowed()
        except ValueError:
            if self._is_whole:
                raise
            # A free answer goes on: what cannot be read as a call is content.
            self._is_given_up = True
            self._points[-1] = point._replace(current=None, tail=None)
            return None
        mask[self._openers_at(point)] = True
        return mask

    def settled(self, token: TokenId) -> TokenId:
        """The token to go on by, where this one was drawn: no whole answer ends inside its reasoning, nor begins in the
        token that closes it."""
        point, is_end = self._points[-1], token in self._tokens.own_ends
        if not self._is_whole or not _is_free(point):
            return token
        if not point.is_thinking or self._text_markers is None:
            return point.state.closer if is_end and point.state.closer is not None else token
        rest = self._text_markers.after_end(point.heard + self._tokens.piece(token)) or b""
        closing = self._text_markers.closing(point.heard) if is_end or rest.strip() else []
        return TokenId(closing[0]) if closing else token

    def forced(self) -> list[int]:
        """The tokens that must come next, as `Matcher.forced`."""
        point = self._points[-1]
        if _is_free(point):
            return self._closing(point)
        if point.current is None or self._openers_at(point):
            return []
        return self._followed[point.current].forced()

    def take_forced(self, n_enough: int) -> list[Token]:
        """Continue by the tokens that must come next, and return them; the search ends at `n_enough`."""
        run: list[Token] = []
        while len(run) < n_enough and (tokens := self.forced()):
            taken: list[Token] = []
            for token in tokens:
                taken.append(Token(TokenId(token), self._tokens.piece(token)))
                self.accept(TokenId(token))
                if not self.is_masking:
                    # What is forced behind it comes after free text.
                    break
            current = self._points[-1].current
            if self._is_whole and current is not None and self._followed[current].is_failed:
                break
            run += taken
        return run

    @property
    def is_over(self) -> bool:
        """True if nothing but an end may follow."""
        return self._points[-1].is_over

    def n_allowed(self, tokens: Seq[TokenId]) -> int:
        """Return how many of the tokens, from the first on, may continue the text."""
        n_allowed = 0
        for token in tokens:
            if not self._may_come(token):
                break
            self.accept(token)
            n_allowed += 1
        self.take_back(n_allowed)
        return n_allowed

    def _may_come(self, token: TokenId) -> bool:
        point = self._points[-1]
        if point.is_over:
            return False
        if _is_free(point):
            closing = self._closing(point)
            return not closing or closing[0] == token
        if point.current is None or token in self._openers_at(point):
            return True
        return self._followed[point.current].n_allowed([token]) == 1

    def _closing(self, point: _Point) -> list[int]:
        """The tokens that close the reasoning, if it is used up."""
        is_used_up = self._budget is not None and point.n_reasoning >= self._budget
        if point.is_thinking and self._text_markers is not None:
            return self._text_markers.closing(point.heard) if is_used_up else []
        is_reasoning = point.state.channel is Channel.REASONING
        return [point.state.closer] if is_used_up and is_reasoning and point.state.closer is not None else []

    def _openers_at(self, point: _Point) -> list[TokenId]:
        """The tokens that open the reasoning, if a whole answer may begin with it here."""
        is_at_begin = self._is_whole and point.current == 0 and point.n_followed == 0
        return self._openers if is_at_begin and not point.has_reasoned and self._budget != 0 else []

    def accept(self, token: TokenId) -> None:
        """Go on by a token that is allowed."""
        self._points.append(self._after(self._points[-1], token))

    def take_back(self, n_tokens: int) -> None:
        """Undo the last `n` tokens."""
        if not n_tokens:
            return
        del self._points[-n_tokens:]
        point = self._points[-1]
        for constraint in self._followed[point.n_made :]:
            constraint.close()
        del self._followed[point.n_made :], self._n_had[point.n_made :]
        if point.current is None:
            return
        for number in range(point.current, point.n_made):
            n_kept = point.n_followed if number == point.current else 0
            if self._n_had[number] > n_kept:
                self._followed[number].take_back(self._n_had[number] - n_kept)
                self._n_had[number] = n_kept

    def close(self) -> None:
        """Free the matchers. Idempotent."""
        for each in self._followed:
            each.close()
        if self._calls is not None:
            self._calls.call.close()

    def _after(self, point: _Point, token: TokenId) -> _Point:
        piece = self._tokens.piece(token)
        if point.is_thinking:
            return self._thought(point, piece or SPECIAL + self._tokens.name(token))
        state = self._marks.after(point.state, token, piece)
        is_ended = _is_free(point) and token in self._marks.enders
        if is_ended and point.current is not None and not self._followed[point.current].n_allowed([token]):
            is_ended, state = False, point.state
        if _is_free(point) and not is_ended:
            is_still = state.channel is Channel.REASONING and point.state.channel is Channel.REASONING
            return point._replace(state=state, tail=b"", n_reasoning=point.n_reasoning + is_still, has_reasoned=True)
        if point.current is not None and token not in self._openers_at(point):
            return self._followed_by(point._replace(state=state), [token])
        point = point._replace(state=state)
        return point if _is_free(point) else self._listened(point, piece or SPECIAL + self._tokens.name(token))

    def _followed_by(self, point: _Point, tokens: list[int]) -> _Point:
        number = point.current
        assert number is not None
        current = self._followed[number]
        for token in tokens:
            current.accept(token)
        self._n_had[number] += len(tokens)
        point = point._replace(n_followed=point.n_followed + len(tokens))
        if not current.is_over:
            return point
        if self._is_whole and number + 1 < len(self._followed):
            return point._replace(current=number + 1, n_followed=0)
        is_over = self._is_whole or (self._calls is not None and not self._calls.is_parallel)
        return point._replace(current=None, n_followed=0, is_over=is_over)

    def _listened(self, point: _Point, data: bytes) -> _Point:
        """Look for the beginning of a reasoning, and of a call, at the end of the free text."""
        if self._text_markers is not None and not self._is_whole:
            text = point.heard + data
            if (rest := self._text_markers.after_begin(text)) is not None:
                return self._thought(point._replace(is_thinking=True, has_reasoned=True, heard=b"", tail=b""), rest)
            point = point._replace(heard=self._text_markers.heard(text))
        can_begin = self._begins and point.tail is not None and not self._is_given_up
        return self._watched(point, data) if can_begin else point

    def _thought(self, point: _Point, data: bytes) -> _Point:
        """Go on in the reasoning; behind its end the answer follows."""
        assert self._text_markers is not None
        text = point.heard + data
        if (rest := self._text_markers.after_end(text)) is not None:
            point = point._replace(is_thinking=False, heard=b"", tail=b"")
            return point if point.current is not None else self._listened(point, rest)
        point = point._replace(heard=self._text_markers.heard(text), n_reasoning=point.n_reasoning + bool(data))
        if not self._begins or not self._text_markers.is_ended_by_call or point.tail is None:
            return point
        point = self._watched(point, data)
        return point._replace(is_thinking=point.current is None)

    def _watched(self, point: _Point, data: bytes) -> _Point:
        """Look for the beginning of a call at the end of the free text; follow the call if there is one."""
        assert self._calls is not None
        assert point.tail is not None
        text = point.tail + data
        if not self._calls.is_anywhere:
            text = text.lstrip()
        if not self._calls.is_headed or point.state.channel in (Channel.HEADER, Channel.ROLE):
            for begin in sorted(self._begins, key=lambda begin: text.find(begin.data)):
                at = text.find(begin.data)
                if at == 0 or (at > 0 and self._calls.is_anywhere):
                    begun = self._begun(point, begin.spelled(text[at + len(begin.data) :]))
                    if begun is not None:
                        return begun
        if not self._calls.is_anywhere:
            can_begin = any(begin.data.startswith(text) for begin in self._begins)
            return point._replace(tail=text if can_begin else None)
        return point._replace(tail=text[max(0, len(text) - self._n_tail) :])

    def _begun(self, point: _Point, tokens: list[int]) -> _Point | None:
        """Follow a call whose first tokens are these; None if they fit no call."""
        assert self._calls is not None
        matcher = self._calls.call.copy()
        if not tokens or matcher.n_allowed(tokens) < len(tokens):
            matcher.close()
            return None
        self._followed.append(matcher)
        self._n_had.append(0)
        number = len(self._followed) - 1
        return self._followed_by(point._replace(current=number, n_followed=0, n_made=number + 1, tail=b""), tokens)


def _is_free(point: _Point) -> bool:
    """True if no constraint holds at a point: in the reasoning, and in a line that names it."""
    state = point.state
    is_reasoning = point.is_thinking or state.channel is Channel.REASONING
    return is_reasoning or (state.channel is Channel.HEADER and state.is_line)
