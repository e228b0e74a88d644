"""The routes that agents use: OpenAI's Responses, Anthropic's Messages, and the counting of their tokens.

No rule is in this module: worker/openai/responses and worker/anthropic have the shapes, and jobs take the same path as
those of chats. Runs on the front's event loop, and waits for nothing but the client and, for tokens, the engine.
"""

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from worker.anthropic import blocks
from worker.anthropic.request import MessageAsked, read_counted, read_messages, token_count
from worker.openai.responses import items
from worker.openai.responses.request import ResponseAsked, input_tokens, read_response
from worker.web.bodies import AnyRequest
from worker.web.edge import counted
from worker.web.openai import Api, ignored_headers, spelled
from worker.web.refusals import ANTHROPIC_ERRORS, json_answer, text_answer
from worker.wire.encoding import encode_json
from worker.wire.questions import Tokenized


def agent_routes(api: Api) -> list[HTTPRouteHandler]:
    return [*_responses_routes(api), *_messages_routes(api)]


def _responses_routes(api: Api) -> list[HTTPRouteHandler]:
    @post("/v1/responses", status_code=200)
    async def responses(request: AnyRequest) -> ASGIResponse:
        """Answer with the next items of a conversation, complete or as events."""
        with counted(api.front, request, "chat"):
            asked = await api.read(request, read_response, items.PAYLOADS)
            heading = api.heading("resp", "_")
            choices = asked.choices(heading)
            return api.answer(request, asked, heading, kind=None, prompts=[asked.prompt], choices=choices)

    @post("/v1/responses/input_tokens", status_code=200)
    async def counted_input(request: AnyRequest) -> Response[bytes]:
        """Answer with the number of the prompt's tokens."""
        asked = await api.read(request, read_response, items.PAYLOADS)
        return _counted(input_tokens(await _tokenized(api, asked)), asked)

    return [responses, counted_input]


def _messages_routes(api: Api) -> list[HTTPRouteHandler]:
    @post("/v1/messages", status_code=200)
    async def messages(request: AnyRequest) -> ASGIResponse:
        """Answer with the next message of a conversation, complete or as events."""
        with counted(api.front, request, "chat"):
            asked = await api.read(request, read_messages, blocks.PAYLOADS)
            heading = api.heading("msg", "_")
            return api.answer(
                request,
                asked,
                heading,
                kind=None,
                prompts=[asked.prompt],
                choices=asked.choices(heading),
                errors=ANTHROPIC_ERRORS,
            )

    @post("/v1/messages/count_tokens", status_code=200)
    async def count_tokens(request: AnyRequest) -> Response[bytes]:
        """Answer with the number of the prompt's tokens."""
        asked = await api.read(request, read_counted, blocks.PAYLOADS)
        return _counted(token_count(await _tokenized(api, asked)), asked)

    @get("/api/hello", sync_to_thread=False)
    def hello() -> Response[bytes]:
        """Answer Claude Code's question whether there is a server."""
        return text_answer("hello", 200)

    return [messages, count_tokens, hello]


async def _tokenized(api: Api, asked: ResponseAsked | MessageAsked) -> Tokenized:
    generation = asked.generation
    return await spelled(api.front.tokenize(asked.prompt), generation.names, generation.places)


def _counted(body: msgspec.Struct, asked: ResponseAsked | MessageAsked) -> Response[bytes]:
    return json_answer(encode_json(body), headers=ignored_headers(asked.generation))
