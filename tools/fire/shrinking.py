"""A trace that fails, made smaller as long as it still fails: fewer requests, fewer flags, fewer fields.

Owns the order in which parts are removed (delta debugging, Zeller and Hildebrandt 2002). Refuses to know what a failure
is. Pure: the caller's `fails` plays a trace.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from tools.fire.asks import Ask
from tools.fire.trace import Act, Life, Trace

Fails = Callable[[Trace], bool]
_Item = TypeVar("_Item")


def shrunk(trace: Trace, fails: Fails) -> Trace:
    """The smallest trace found; `fails` is true of it, as of the given one."""
    acts = [(number, act) for number, life in enumerate(trace.lives) for act in life.acts]
    kills = [(number, at_ms) for number, life in enumerate(trace.lives) for at_ms in life.kills_ms]
    acts = minimal(acts, lambda some: fails(_with(trace, some, kills)))
    kills = minimal(kills, lambda some: fails(_with(trace, acts, some)))
    trace = _with(trace, acts, kills)
    for simpler in (_without_empty_lives, _without_directory, _without_draft_model):
        trace = simpler(trace) if simpler(trace) != trace and fails(simpler(trace)) else trace
    pairs = minimal([*zip(trace.flags[::2], trace.flags[1::2], strict=True)], lambda some: fails(_flagged(trace, some)))
    trace = _flagged(trace, pairs)
    return _with_simple_asks(_with_simple_fates(trace, fails), fails)


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
    lives = tuple(
        Life(
            acts=tuple(act for at, act in acts if at == number),
            kills_ms=tuple(at_ms for at, at_ms in kills if at == number),
        )
        for number in range(len(trace.lives))
    )
    return replace(trace, lives=lives)


def _without_empty_lives(trace: Trace) -> Trace:
    return replace(trace, lives=tuple(life for life in trace.lives if life.acts))


def _without_directory(trace: Trace) -> Trace:
    return replace(trace, has_cache_dir=False)


def _without_draft_model(trace: Trace) -> Trace:
    return replace(trace, has_draft_model=False)


def _flagged(trace: Trace, pairs: Sequence[tuple[str, str]]) -> Trace:
    return replace(trace, flags=tuple(word for pair in pairs for word in pair))


def _with_simple_fates(trace: Trace, fails: Fails) -> Trace:
    for number, life in enumerate(trace.lives):
        for place, act in enumerate(life.acts):
            if act.fate is not None:
                lives = list(trace.lives)
                acts = list(lives[number].acts)
                acts[place] = replace(act, fate=None)
                lives[number] = replace(lives[number], acts=tuple(acts))
                simpler = replace(trace, lives=tuple(lives))
                trace = simpler if fails(simpler) else trace
    return trace


def _with_simple_asks(trace: Trace, fails: Fails) -> Trace:
    """Requests that are not sent are removed, and of the others each field that does not matter. A request without its
    seed has no right answer, and would fail always.
    """
    places = sorted({act.ask for life in trace.lives for act in life.acts})
    lives = tuple(
        replace(life, acts=tuple(replace(act, ask=places.index(act.ask)) for act in life.acts)) for life in trace.lives
    )
    trace = replace(trace, lives=lives, asks=tuple(trace.asks[place] for place in places))
    for place in range(len(places)):
        for name in [each for each in trace.asks[place].body if each != "seed"]:
            asks = list(trace.asks)
            asks[place] = _without(asks[place], name)
            simpler = replace(trace, asks=tuple(asks))
            trace = simpler if fails(simpler) else trace
    return trace


def _without(ask: Ask, name: str) -> Ask:
    return Ask(ask.path, {other: value for other, value in ask.body.items() if other != name})
