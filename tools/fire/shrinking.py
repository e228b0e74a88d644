"""A trace that fails, made smaller as long as it still fails: fewer requests, kills, flags and fields.

Owns the order in which parts are removed (delta debugging, Zeller and Hildebrandt 2002). Refuses to know what a failure
is. Pure: the caller's `fails` plays a trace.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import replace

from tools.fire.asks import Ask
from tools.fire.trace import Act, Life, Trace

_Item = TypeVar("_Item")


def shrunk(trace: Trace, fails: Callable[[Trace], bool]) -> Trace:
    """The smallest trace found; `fails` is true of it, as of the given one.

    A request without its seed has no right answer, and would fail always.
    """
    acts = [(number, act) for number, life in enumerate(trace.lives) for act in life.acts]
    kills = [(number, at_ms) for number, life in enumerate(trace.lives) for at_ms in life.kills_ms]
    acts = minimal(acts, lambda some: fails(_with(trace, some, kills)))
    kills = minimal(kills, lambda some: fails(_with(trace, acts, some)))
    trace = _with(trace, acts, kills)
    lives = tuple(life for life in trace.lives if life.acts)
    changes: tuple[dict[str, Any], ...] = ({"lives": lives}, {"has_cache_dir": False}, {"has_draft_model": False})
    for change in changes:
        simpler = replace(trace, **change)
        trace = simpler if fails(simpler) else trace
    pairs = [*zip(trace.flags[::2], trace.flags[1::2], strict=True)]
    trace = _flagged(trace, minimal(pairs, lambda some: fails(_flagged(trace, some))))
    for place, ask in enumerate(trace.asks):
        trace = _with_fields(trace, place, _needed_fields(trace, place, ask, fails))
    return trace


def minimal(items: Sequence[_Item], fails: Callable[[list[_Item]], bool]) -> list[_Item]:
    """A part of the items of which `fails` is true, and of which no tried part is enough."""
    kept, n_parts = list(items), 2
    if kept and fails([]):
        return []
    while len(kept) > 1:
        smaller = next((some for some in _complements(kept, n_parts) if fails(some)), None)
        if smaller is not None:
            kept, n_parts = smaller, max(n_parts - 1, 2)
        elif n_parts >= len(kept):
            break
        else:
            n_parts = min(2 * n_parts, len(kept))
    return kept


def _complements(items: list[_Item], n_parts: int) -> Iterator[list[_Item]]:
    edges = [len(items) * part // n_parts for part in range(n_parts + 1)]
    for begin, end in pairwise(edges):
        yield items[:begin] + items[end:]


def _with(trace: Trace, acts: Sequence[tuple[int, Act]], kills: Sequence[tuple[int, int]]) -> Trace:
    """The trace with these events, and with the requests that are sent."""
    places = sorted({act.ask for _, act in acts})
    lives = tuple(
        Life(
            acts=tuple(replace(act, ask=places.index(act.ask)) for at, act in acts if at == number),
            kills_ms=tuple(at_ms for at, at_ms in kills if at == number),
        )
        for number in range(len(trace.lives))
    )
    return replace(trace, lives=lives, asks=tuple(trace.asks[place] for place in places))


def _flagged(trace: Trace, pairs: Sequence[tuple[str, str]]) -> Trace:
    return replace(trace, flags=tuple(word for pair in pairs for word in pair))


def _needed_fields(trace: Trace, place: int, ask: Ask, fails: Callable[[Trace], bool]) -> list[str]:
    fields = [name for name in ask.body if name != "seed"]
    return minimal(fields, lambda some: fails(_with_fields(trace, place, some)))


def _with_fields(trace: Trace, place: int, names: Sequence[str]) -> Trace:
    asks = list(trace.asks)
    body = {name: value for name, value in asks[place].body.items() if name in (*names, "seed")}
    asks[place] = Ask(asks[place].path, body)
    return replace(trace, asks=tuple(asks))
