"""The question of the loops in Python, their two tools, and their report. It needs nothing but Python itself."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

ASKED = "What will the weather be where Ada Lovelace was born?"
_called: list[Any] = []


def find_city(person: str) -> str:
    """Find the city in which a person was born."""
    _called.append(["find_city", {"person": person}])
    return "London"


def forecast(city: str, days: int) -> str:
    """Forecast the weather of a city."""
    _called.append(["forecast", {"city": city, "days": days}])
    return f"Rain in {city} for {days} days"


async def report(models: Mapping[str, Any], answered: Callable[[Any, bool], Awaitable[str]]) -> None:
    """Print a JSON object for each model, whole and streamed: the calls, and the answer that `answered` returns."""
    for name, model in models.items():
        for is_streamed in (False, True):
            _called.clear()
            text = await answered(model, is_streamed)
            way = f"{name}, {'streamed' if is_streamed else 'whole'}"
            print(json.dumps({"way": way, "called": _called, "text": text}))
