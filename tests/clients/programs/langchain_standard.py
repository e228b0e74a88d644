"""LangChain's own standard tests of a chat model, with its `ChatOpenAI` on a worker.

Run by pytest in an environment that has langchain-openai and langchain-tests; LLORCH_V1 is the worker's base URL.
"""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

PARAMS: dict[str, Any] = {
    "base_url": os.environ["LLORCH_V1"],
    "api_key": "none",
    "model": "any",
    "temperature": 0,
    "stream_usage": True,
}
OF_A_SMALL_MODEL = {"max_tokens": 300, "frequency_penalty": 1.0}
"""The penalty is needed: without it the model repeats itself, and never closes a string."""


class OfAWorker:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI  # type: ignore[no-any-return] # the package is not in the environment of mypy

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return PARAMS

    @property
    def has_tool_calling(self) -> bool:
        return False


class TestUnit(OfAWorker, ChatModelUnitTests):  # type: ignore[misc] # as above
    pass


# Without LangChain's JSON mode, in which the model has to guess the keys.
class TestIntegration(OfAWorker, ChatModelIntegrationTests):  # type: ignore[misc] # as above
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return PARAMS | OF_A_SMALL_MODEL

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": "json_schema"}
