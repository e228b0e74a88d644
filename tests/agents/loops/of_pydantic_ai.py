"""Two tools in a loop of `pydantic-ai`: `python of_pydantic_ai.py URL` prints a JSON object for each way to run it.

Runs in an environment that has nothing but the package and the files beside it.
"""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from two_tools import ASKED, find_city, forecast, report


async def answered(model: Model, is_streamed: bool) -> str:
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
    await report(models, answered)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
