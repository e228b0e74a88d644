"""Two tools in a loop of `pydantic-ai`: `python of_pydantic_ai.py URL` prints a JSON object for each way to run it.

Alone in its file, as it runs in an environment that has nothing but the package.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

ASKED = "What will the weather be where Ada Lovelace was born?"
called: list[Any] = []


def find_city(person: str) -> str:
    """Find the city in which a person was born."""
    called.append(["find_city", {"person": person}])
    return "London"


def forecast(city: str, days: int) -> str:
    """Forecast the weather of a city."""
    called.append(["forecast", {"city": city, "days": days}])
    return f"Rain in {city} for {days} days"


async def answered(model: Model, *, is_streamed: bool) -> str:
    agent = Agent(model, instructions="Be brief.", tools=[find_city, forecast])
    if not is_streamed:
        return str((await agent.run(ASKED)).output)
    async with agent.run_stream(ASKED) as running:
        return str(await running.get_output())


async def main(url: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    models = {
        "chat completions": OpenAIChatModel("m", provider=provider),
        "Responses": OpenAIResponsesModel("m", provider=provider),
        "Messages": AnthropicModel("m", provider=AnthropicProvider(base_url=url, api_key="none")),
    }
    for name, model in models.items():
        for is_streamed in (False, True):
            called.clear()
            text = await answered(model, is_streamed=is_streamed)
            way = f"{name}, {'streamed' if is_streamed else 'whole'}"
            print(json.dumps({"way": way, "called": called, "text": text}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
