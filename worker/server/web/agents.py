"""The routes that agents use: OpenAI's Responses, Anthropic's Messages, and the counting of their prompts' tokens.

No rule is in this module: worker/apis has the shapes, and jobs take the same path
as those of chats. Runs on the front's event loop, and waits for nothing but the client and, for tokens, the engine.
"""

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from worker.apis.messages import blocks
from worker.apis.messages.request import MessageAsked, read_counted, read_messages, token_count
from worker.apis.responses import items
from worker.apis.responses.request import ResponseAsked, input_tokens, read_response
from worker.server.web.api import Api, generating, ignored_headers, spelled
from worker.server.web.bodies import AnyRequest
from worker.server.web.refusals import ANTHROPIC_ERRORS, json_answer, text_answer
from worker.wire.encoding import encode_json
from worker.wire.questions import Tokenized


def agent_routes(api: Api) -> list[HTTPRouteHandler]:
    responses = generating(api, "/v1/responses", read_response, items.PAYLOADS, prefix="resp_")
    messages = generating(api, "/v1/messages", read_messages, blocks.PAYLOADS, prefix="msg_", errors=ANTHROPIC_ERRORS)

    @post("/v1/responses/input_tokens", status_code=200)
    async def input_count(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, read_response, items.PAYLOADS)
        return _counted(input_tokens(await _tokenized(api, asked)), asked)

    @post("/v1/messages/count_tokens", status_code=200)
    async def message_count(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, read_counted, blocks.PAYLOADS)
        return _counted(token_count(await _tokenized(api, asked)), asked)

    @get("/api/hello", sync_to_thread=False)
    def hello() -> Response[bytes]:
        """Answer Claude Code's question whether there is a server."""
        return text_answer("hello", 200)

    return [responses, input_count, messages, message_count, hello]


async def _tokenized(api: Api, asked: ResponseAsked | MessageAsked) -> Tokenized:
    generation = asked.generation
    return await spelled(api.front.tokenize(asked.prompt), generation.names, generation.places)


def _counted(body: msgspec.Struct, asked: ResponseAsked | MessageAsked) -> Response[bytes]:
    return json_answer(encode_json(body), headers=ignored_headers(asked.generation))
