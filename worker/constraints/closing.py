"""The end of a JSON text is reached before its tokens run out.

Owns the count of tokens that are left, the search for a way to the end, and when one is looked for. A way need not be
the shortest: it closes what is open, and where something must still be said it says little. Knows of the library's
matchers only what it asks of them. Used on the step thread; all that it decides depends on the text and the number of
its tokens alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Protocol, Self

from worker.wire.jobs import TokenId

MAX_WAY = 512
"""The most tokens of a way; a text that is further from its end is not steered."""
_MAX_FORCED_BYTES = 16 * MAX_WAY
"""More than a way has. A schema may force millions, which take a second to spell."""
_NEAR = 32
"""Each token is tried before it is taken from this many tokens before a way would be needed; from more if a whole text
is longer."""
_GROWTH = 8
"""The number of tokens by which a way is assumed to grow with each token of the text, while no way is searched for."""

_QUOTE, _BACKSLASH = 0x22, 0x5C
_LETTERS = bytes(range(0x61, 0x7B)) + bytes(range(0x41, 0x5B))
_OUTSIDE_IN_ORDER = (b"}],:n", b"0123456789", b'"tf-.eE+', b"[{", b" " + _LETTERS)
"""Bytes that close come first, bytes that open last. In each group the least used come first."""
_INSIDE_IN_ORDER = (b'"', b"@.:-/T0123456789" + _LETTERS + b" _+", bytes(range(0x20, 0x100)))
"""Marks stand between the parts of dates and addresses, and get on there."""
_CLOSING = b'}],:"'
_N_COMPARED = 12
"""The number of bytes that are compared to find one behind which something closes."""
_N_WAYS = 64
"""The number of tokens back for which ways are remembered: more than are drafted and forced at once."""
_N_TAIL = 8
"""Two places in a string are taken to be alike if this many bytes before them are the same."""

_OUTSIDE, _INSIDE, _ESCAPED = range(3)
"""The state at a place in a JSON text: outside of its strings, in a string, or behind a backslash in a string."""


class Matcher(Protocol):
    """A point in a text, as the library has it."""

    def deep_copy(self) -> Self: ...

    def is_accepting(self) -> bool: ...

    def is_error(self) -> bool: ...

    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def compute_ff_bytes(self) -> bytes: ...

    def compute_ff_tokens(self) -> list[int]: ...


class Closing:
    """The way to the end of one job's text, as far as it matters."""

    def __init__(
        self, matcher: Matcher, pieces: Callable[[int], bytes], token_of_byte: Mapping[int, int], end: int
    ) -> None:
        """`token_of_byte`: the tokens of a single byte. `end`: a token that ends a text."""
        self._matcher = matcher
        self._pieces = pieces
        self._token_of_byte = token_of_byte
        self._end = end
        self._n_most: int | None = None
        self._n_near: int | None = None
        self._tokens: list[int] = []
        self._places: list[tuple[int, bytes, int]] = []
        """The state behind each token of the text: its place, its last bytes, and how many tokens are left when the
        next one is tried."""
        self._next_tries: dict[int, int] = {}
        """The same of tokens that are not in the text yet, by their place."""
        self._ways: dict[int, list[int]] = {}
        """The way that was found behind the token at a place."""

    def end_within(self, n_tokens: int) -> None:
        """Limit the text to `n_tokens`."""
        self._n_most = n_tokens

    def went_on(self, tokens: Seq[int]) -> None:
        """The text has these tokens more."""
        place, tail, next_try = self._last
        for token in tokens:
            piece = self._pieces(token)
            next_try = self._next_tries.get(len(self._places), next_try)
            place, tail = _place_after(place, piece), (tail + piece)[-_N_TAIL:]
            self._tokens.append(token)
            self._places.append((place, tail, next_try))

    def went_back(self, n_tokens: int) -> None:
        n_left = len(self._places) - n_tokens
        del self._places[n_left:], self._tokens[n_left:]

    def settled(self, token: TokenId) -> TokenId | None:
        """The drawn token; or the first one of a way to the end, where behind the drawn one there is no time for any;
        None where the text can only end now.
        """
        next_try = self._last[2]
        if self._n_most is None or (n_left := self._n_most - len(self._places)) > next_try:
            return token
        n_after = n_left - 1
        way = self._way([token], n_after)
        if way is not None:
            if self._n_near is None:
                self._n_near = _NEAR + len(way)
            n_spare = n_after - len(way) - self._n_near
            return self._decided(token, way, n_after - max(0, n_spare) // (1 + _GROWTH))
        way = self._known_way(n_left)
        if way is None:
            way = self._way([], n_left)
        if way is None:
            # The end is out of reach, at least from here.
            return self._decided(token, [], n_after - n_after // _GROWTH)
        return self._decided(TokenId(way[0]), way[1:], n_after) if way else None

    def _decided(self, token: TokenId, way: list[int], next_try: int) -> TokenId:
        at = len(self._tokens)
        self._next_tries[at], self._ways[at] = next_try, way
        self._ways.pop(at - _N_WAYS, None)
        return token

    def _known_way(self, n_most: int) -> list[int] | None:
        """The rest of a way that was found before, where the text has taken it so far."""
        at = len(self._tokens)
        begin = next((place for place in range(at, max(0, at - _N_WAYS), -1) if place - 1 in self._ways), None)
        if begin is None:
            return None
        way, n_gone = self._ways[begin - 1], at - begin
        rest = way[n_gone:]
        return rest if rest and len(rest) <= n_most and way[:n_gone] == self._tokens[begin:] else None

    @property
    def _last(self) -> tuple[int, bytes, int]:
        return self._places[-1] if self._places else (_OUTSIDE, b"", self._n_most or 0)

    def _way(self, first: list[int], n_most: int) -> list[int] | None:
        """Tokens behind the first ones with which the text may end, at most `n_most`; None where none are found.

        On copies: what the search meets, the library's limits for instance, is not the text's.
        """
        for is_reversed in (False, True):
            way = self._way_in_order(first, n_most, is_reversed=is_reversed)
            if way is not None:
                return way
        return None

    def _way_in_order(self, first: list[int], n_most: int, *, is_reversed: bool) -> list[int] | None:
        matcher = self._matcher.deep_copy()
        if first and not matcher.consume_tokens(first):
            return None
        way: list[int] = []
        ahead = _Ahead(*self._last[:2], is_reversed=is_reversed)
        for token in first:
            ahead.go_on(self._pieces(token))
        while len(way) <= min(n_most, MAX_WAY) and not matcher.is_error():
            if matcher.is_accepting():
                return way
            n_forced = len(matcher.compute_ff_bytes())
            if n_forced > _MAX_FORCED_BYTES:
                return None
            step = (matcher.compute_ff_tokens() if n_forced else []) or self._choice(matcher, ahead)
            if not step or not matcher.consume_tokens(step):
                return None
            way += step
            for token in step:
                ahead.go_on(self._pieces(token))
        return None

    def _choice(self, matcher: Matcher, ahead: "_Ahead") -> list[int]:
        """The next token where there is a choice, if one can be found behind which something closes; empty where no
        single byte may follow.
        """
        first: tuple[int, int] | None = None
        for n_tried, (value, token) in enumerate(self._possible(matcher, ahead)):
            first = first or (value, token)
            if value in _CLOSING or any(matcher.validate_tokens([token, end]) == 2 for end in self._ends_of(ahead)):
                first = value, token
                break
            if n_tried == _N_COMPARED:
                break
        if first is None:
            return []
        ahead.choose(first[0])
        return [first[1]]

    def _possible(self, matcher: Matcher, ahead: "_Ahead") -> Iterator[tuple[int, int]]:
        """The bytes that may follow, in the order in which they are to be tried, with their tokens."""
        for value in ahead.candidates():
            token = self._token_of_byte.get(value)
            if token is not None and matcher.validate_tokens([token]):
                yield value, token

    def _ends_of(self, ahead: "_Ahead") -> list[int]:
        """Tokens with which a string or a number ends."""
        if ahead.is_in_string:
            return [token for token in (self._token_of_byte.get(_QUOTE),) if token is not None]
        return [self._end, *(self._token_of_byte[value] for value in b"},]" if value in self._token_of_byte)]


class _Ahead:
    """A text on its way to an end: what to try next, so that it gets there."""

    def __init__(self, place: int, tail: bytes, *, is_reversed: bool) -> None:
        """`is_reversed`: what a string says is tried in the other order, where one has led nowhere."""
        self._is_reversed = is_reversed
        self._place = place
        self._tail = tail
        self._depth = 0
        self._uses: Counter[int] = Counter()
        """The count of each byte in this string or number."""
        self._open: list[tuple[int, bytes, int]] = []
        """The choices in objects and arrays that are still open: depth, the text before, and the byte chosen."""
        self._leads_back: set[tuple[bytes, int]] = set()
        """The choices that have led to the same choice again."""

    @property
    def is_in_string(self) -> bool:
        return self._place != _OUTSIDE

    def candidates(self) -> Iterator[int]:
        """The bytes to try, in their order.

        What has led back to the same choice comes last; of a group the least used come first, so that whatever must
        be said is said at some time.
        """
        before = self._before
        self._leads_back |= {(text, value) for _, text, value in self._open if text == before}
        groups = _OUTSIDE_IN_ORDER if self._place == _OUTSIDE else _INSIDE_IN_ORDER
        in_turn = [group[::-1] if self._is_reversed and self.is_in_string else group for group in groups]
        ordered = [value for group in in_turn for value in sorted(group, key=lambda value: self._uses[value])]
        yield from sorted(ordered, key=lambda value: (before, value) in self._leads_back)

    def choose(self, value: int) -> None:
        """A byte was chosen where there were others."""
        self._uses[value] += 1
        if value not in _CLOSING:
            self._open.append((self._depth, self._before, value))

    def go_on(self, piece: bytes) -> None:
        for value in piece:
            if self._place == _OUTSIDE and value in b"[{":
                self._depth += 1
            elif self._place == _OUTSIDE and value in b"]}":
                self._depth -= 1
                while self._open and self._open[-1][0] > self._depth:
                    self._open.pop()
            if self._place == _OUTSIDE and value in b'",:[]{}':
                self._uses.clear()
            self._place = _place_after(self._place, bytes([value]))
        self._tail = (self._tail + piece)[-_N_TAIL:]

    @property
    def _before(self) -> bytes:
        return self._tail[-1:] if self._place == _OUTSIDE else self._tail


def _place_after(place: int, piece: bytes) -> int:
    if place != _ESCAPED and _QUOTE not in piece and _BACKSLASH not in piece:
        return place
    for value in piece:
        if place == _ESCAPED:
            place = _INSIDE
        elif value == _QUOTE:
            place = _OUTSIDE if place == _INSIDE else _INSIDE
        elif value == _BACKSLASH and place == _INSIDE:
            place = _ESCAPED
    return place
