"""Two tools in a loop of `openai-agents`: `python of_openai_agents.py URL` prints a JSON object for each way to run it.

Alone in its file, as it runs in an environment that has nothing but the package.
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

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
    agent = Agent(
        name="guide", instructions="Be brief.", tools=[function_tool(find_city), function_tool(forecast)], model=model
    )
    if not is_streamed:
        return str((await Runner.run(agent, ASKED)).final_output)
    running = Runner.run_streamed(agent, ASKED)
    async for _ in running.stream_events():
        pass
    return str(running.final_output)


async def main(url: str) -> None:
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    models = {
        "chat completions": OpenAIChatCompletionsModel(model="m", openai_client=client),
        "Responses": OpenAIResponsesModel(model="m", openai_client=client),
    }
    for name, model in models.items():
        for is_streamed in (False, True):
            called.clear()
            text = await answered(model, is_streamed=is_streamed)
            way = f"{name}, {'streamed' if is_streamed else 'whole'}"
            print(json.dumps({"way": way, "called": called, "text": text}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
