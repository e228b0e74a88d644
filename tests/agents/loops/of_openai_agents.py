"""Two tools in a loop of `openai-agents`: `python of_openai_agents.py URL` prints a JSON object for each way to run it.

Runs in an environment that has nothing but the package and the files beside it.
"""

import asyncio
import sys

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
from two_tools import ASKED, find_city, forecast, report


async def answered(model: Model, is_streamed: bool) -> str:
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
    await report(models, answered)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
