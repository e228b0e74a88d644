"""The routes for clients of OpenAI, Anthropic, vLLM and llama-server, and the steps of each from body to answer.

No rule is in this module: worker/apis has the shapes, and jobs take the same path as those of `/execute`. It waits for
nothing but the client and, for tokens of a text, the engine.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from typing import TypeVar

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from worker import __version__
from worker.apis.chat import request as chat
from worker.apis.chat.message import REASONING_FIELDS
from worker.apis.chat.request import read_chat
from worker.apis.completions.request import Echo, read_completion
from worker.apis.core.answers import Choice, Heading, last_chunks, whole
from worker.apis.core.bodies import FieldsRefused, ModelCard, ModelList, fingerprint, model_card
from worker.apis.core.errors import UnknownModel, refused_as_spelled
from worker.apis.core.fields import in_header
from worker.apis.core.payloads import NO_PLACES, MediaPlaces
from worker.apis.core.request import JobRequest, Request, Terms
from worker.apis.infill import tokens
from worker.apis.infill.request import read_infill
from worker.apis.messages.answer import TokenCount
from worker.apis.messages.request import BLOCK_PAYLOADS, read_counted, read_messages
from worker.apis.responses import items
from worker.apis.responses.request import read_response
from worker.apis.responses.resource import InputTokens
from worker.config.engine_settings import MAX_PROMPT_CHARS
from worker.errors import WorkerError, WorkerLoading
from worker.server.front.admission import LOADING_RETRY_S
from worker.server.front.job import Job
from worker.server.front.state import Front
from worker.server.web.bodies import AnyRequest, Bodies
from worker.server.web.connection import check_address
from worker.server.web.middleware import counted
from worker.server.web.pages import plain_route
from worker.server.web.refusals import json_answer, text_answer
from worker.server.web.streaming import JobResponse, opened_jobs
from worker.wire.encoding import encode_json
from worker.wire.jobs import Prompt
from worker.wire.load import Loaded
from worker.wire.messages import Tokenized

Asked = TypeVar("Asked")
Reader = Callable[[bytearray, Terms], Asked]
"""(body, terms) → the request. Raises: WorkerError."""


class Api:
    """The parts that the routes share: the model's name, and the steps from a body to jobs."""

    def __init__(self, front: Front, bodies: Bodies) -> None:
        self.front = front
        self.created = int(time.time())
        self._bodies = bodies

    @property
    def facts(self) -> Loaded:
        """Raises: WorkerLoading before a model was loaded."""
        if self.front.facts is None:
            raise WorkerLoading("the model is still loading", LOADING_RETRY_S)
        return self.front.facts

    @cached_property
    def model_name(self) -> str:
        return self.front.settings.served_name(self.facts.name)

    async def read(self, request: AnyRequest, read: Reader[Asked], payloads: MediaPlaces = NO_PLACES) -> Asked:
        """The decoded request without its payloads (apis/core/payloads.py). Raises: WorkerError, HTTPException."""
        check_address(request.scope)
        settings, facts = self.front.settings, self.facts
        terms = Terms(
            model=self.model_name,
            is_strict=settings.strict_model,
            max_tokens_out=min(settings.max_tokens_out or facts.context_length, facts.context_length),
            max_text_chars=MAX_PROMPT_CHARS,
            vocab_size=facts.vocab_size,
            template_keys=facts.model.template_keys,
            n_ctx=facts.context_length,
            can_infill=facts.model.can_infill,
            takes_predictions=bool(facts.row_costs) and settings.prompt_lookup != "off",
            chat_format=facts.model.chat_format,
            can_limit_reasoning=facts.model.can_limit_reasoning,
            reads_fenced=not settings.no_fenced_calls,
            reasoning_fields=REASONING_FIELDS if settings.reasoning_field == "both" else (settings.reasoning_field,),
            keeps_billing_block=settings.keep_billing_block,
        )
        return await self._bodies.decoded(request, lambda body: read(body, terms), payloads)

    def heading(self, prefix: str) -> Heading:
        return Heading(
            id=f"{prefix}{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.model_name,
            system_fingerprint=fingerprint(self.facts, __version__),
        )

    def answer(
        self,
        request: AnyRequest,
        asked: Request,
        heading: Heading,
        prompts: Sequence[Prompt],
        choices: Sequence[Choice],
    ) -> ASGIResponse:
        """Open the jobs of an answer, n for each prompt, and answer with their output. Raises: see open_jobs."""
        numbered = zip(product(prompts, range(asked.n)), choices, strict=True)
        jobs = opened_jobs(
            self.front,
            request,
            [
                JobRequest(
                    job_id=heading.id if len(choices) == 1 else f"{heading.id}-{at}",
                    asked=asked,
                    prompt=prompt,
                    dialect=choice,
                    number=number,
                    answer_id=heading.id,
                )
                for at, ((prompt, number), choice) in enumerate(numbered)
            ],
            self.front.settings.inference_timeout_sec,
        )
        headers = {"x-request-id": heading.id} | _ignored(asked.ignored, asked.ignored_tools)
        respond = partial(
            JobResponse,
            self.front,
            jobs,
            headers,
            as_asked=partial(_as_asked, asked),
            headers_when_accepted=partial(_accepted_headers, asked, jobs, self.facts.context_length),
        )
        if asked.is_stream:
            return respond(ending=partial(last_chunks, heading, choices, asked.n, asked.options))
        return respond(whole=partial(whole, heading, choices, asked.n))


def _as_asked(asked: Request, refusal: WorkerError) -> WorkerError:
    """An engine's refusal with the client's names of the fields."""
    if not isinstance(refusal, FieldsRefused):
        return refusal
    tools = [tool.place for tool in asked.reading.use.tools]
    return refused_as_spelled(refusal, asked.names, asked.places, tools)


def _accepted_headers(asked: Request, jobs: Sequence[Job], context_length: int) -> dict[str, str]:
    """Report the length to which answers are cut, if a request asked for more tokens than its longest prompt leaves,
    and the tools whose schemas the engine cannot enforce."""
    max_tokens = asked.cut_to(context_length - max(job.prompt_tokens for job in jobs))
    cut = [] if max_tokens is None else [str(max_tokens)]
    tools = asked.reading.use.tools
    loose = in_header(tools[place].given_name for place in jobs[0].unenforced_tools)
    return _lists({"x-max-tokens-cut": cut, "x-unenforced-tools": loose})


def _ignored(fields: Sequence[str], tools: Sequence[str] = ()) -> dict[str, str]:
    """The headers that name the fields without effect and the tools that the worker does not have."""
    return _lists({"x-ignored-fields": fields, "x-ignored-tools": tools})


def _lists(values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The headers that have a value."""
    return {name: ", ".join(each) for name, each in values.items() if each}


def _body(body: object, ignored: Sequence[str] = (), ignored_tools: Sequence[str] = ()) -> Response[bytes]:
    return json_answer(encode_json(body), headers=_ignored(ignored, ignored_tools))


# ── the routes ───────────────────────────────────────────────────────────────────────────────────


def api_routes(api: Api) -> list[HTTPRouteHandler]:
    return [
        *_model_routes(api),
        _generating(api, "/v1/chat/completions", read_chat, chat.PAYLOADS, prefix="chatcmpl-"),
        _completions(api),
        _generating(api, "/infill", read_infill, NO_PLACES, prefix="fill-", operation="infill"),
        *_token_routes(api),
    ]


def agent_routes(api: Api) -> list[HTTPRouteHandler]:
    return [
        _generating(api, "/v1/responses", read_response, items.PAYLOADS, prefix="resp_"),
        _counting(api, "/v1/responses/input_tokens", read_response, items.PAYLOADS, InputTokens),
        _generating(api, "/v1/messages", read_messages, BLOCK_PAYLOADS, prefix="msg_"),
        _counting(api, "/v1/messages/count_tokens", read_counted, BLOCK_PAYLOADS, TokenCount),
        plain_route("/api/hello", lambda: text_answer("hello", 200)),  # Claude Code asks whether there is a server
    ]


def _model_routes(api: Api) -> list[HTTPRouteHandler]:
    def card() -> ModelCard:
        return model_card(api.facts, api.model_name, api.created)

    @get("/v1/models/{model_id:path}", sync_to_thread=False)
    def model(request: AnyRequest) -> Response[bytes]:
        """The model, if its name is served here; names may contain slashes."""
        asked = request.scope["path"].removeprefix("/v1/models/").removesuffix("/")
        if asked != api.model_name:
            raise UnknownModel(asked, api.model_name)
        return _body(card())

    return [plain_route("/v1/models", lambda: _body(ModelList(data=[card()]))), model]


def _generating(
    api: Api, path: str, read: Reader[Request], payloads: MediaPlaces, *, prefix: str, operation: str = "chat"
) -> HTTPRouteHandler:
    """A route whose requests have one prompt. Its answers are complete, or a stream; their ids begin with `prefix`."""

    @post(path, status_code=200)
    async def generate(request: AnyRequest) -> ASGIResponse:
        with counted(api.front, request, operation):
            asked = await api.read(request, read, payloads)
            heading = api.heading(prefix)
            return api.answer(request, asked, heading, asked.prompts, asked.answers(heading))

    return generate


def _counting(
    api: Api, path: str, read: Reader[Request], payloads: MediaPlaces, shape: Callable[..., object]
) -> HTTPRouteHandler:
    """A route that answers with the number of the prompt's tokens in a body of this shape."""

    @post(path, status_code=200)
    async def count_tokens(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, read, payloads)
        found = await _spelled(api.front.tokenize(asked.prompts[0]), asked.names, asked.places)
        return _body(shape(input_tokens=len(found.tokens)), asked.ignored, asked.ignored_tools)

    return count_tokens


def _completions(api: Api) -> HTTPRouteHandler:
    @post("/v1/completions", status_code=200)
    async def text_completions(request: AnyRequest) -> ASGIResponse:
        with counted(api.front, request, "text_completion"):
            asked = await api.read(request, read_completion)
            echoed = [await _echoed(api.front, asked, prompt) for prompt in asked.prompts]
            heading = api.heading("cmpl-")
            return api.answer(
                request,
                asked,
                heading,
                [prompt for prompt, _ in echoed],
                asked.answers(heading, [echo for _, echo in echoed]),
            )

    return text_completions


async def _echoed(front: Front, asked: Request, prompt: Prompt) -> tuple[Prompt, Echo | None]:
    """The prompt for the engine, and the beginning of its answer. Raises: see Front.tokenize."""
    if not asked.is_echo:
        return prompt, None
    assert isinstance(prompt, str | tuple)  # an echo excludes a gap
    if asked.params.logprobs is None:
        return prompt, Echo(prompt if isinstance(prompt, str) else await front.detokenize(prompt))
    ids = (await front.tokenize(prompt)).tokens if isinstance(prompt, str) else prompt
    text = prompt if isinstance(prompt, str) else await front.detokenize(prompt)
    return ids, Echo(text, ids[0], await front.detokenize(ids[:1]))


def _token_routes(api: Api) -> list[HTTPRouteHandler]:
    @post("/tokenize", status_code=200)
    async def tokenize(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, tokens.read_tokenize)
        answer = api.front.tokenize(asked.prompt, add_special=asked.add_special, parse_special=asked.parse_special)
        found = (await _spelled(answer, {"prompt": asked.field})).tokens
        most = api.facts.context_length
        return _body(tokens.TokensBody(tokens=found, count=len(found), max_model_len=most), asked.ignored)

    @post("/detokenize", status_code=200)
    async def detokenize(request: AnyRequest) -> Response[bytes]:
        found, ignored = await api.read(request, tokens.read_detokenize)
        text = await api.front.detokenize(found)
        return _body(tokens.TextBody(content=text, prompt=text), ignored)

    def tokenizer_facts() -> Response[bytes]:
        return _body(msgspec.convert(api.facts.model, tokens.TokenizerInfo, from_attributes=True))

    tokenizer_info = plain_route("/tokenizer_info", tokenizer_facts)

    @post("/v1/chat/completions/render", status_code=200)
    async def render_chat(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, read_chat, chat.PAYLOADS)
        (rendered,) = await _rendered(api.front, asked)
        return _body(rendered, asked.ignored)

    @post("/v1/completions/render", status_code=200)
    async def render_completion(request: AnyRequest) -> Response[bytes]:
        asked = await api.read(request, read_completion)
        return _body(await _rendered(api.front, asked), asked.ignored)

    return [tokenize, detokenize, tokenizer_info, render_chat, render_completion]


async def _rendered(front: Front, asked: Request) -> list[tokens.RenderedBody]:
    found = [await _spelled(front.tokenize(prompt), asked.names) for prompt in asked.prompts]
    return [tokens.RenderedBody(token_ids=one.tokens, prompt=one.text) for one in found]


async def _spelled(answer: Awaitable[Tokenized], names: Mapping[str, str], places: Sequence[str] = ()) -> Tokenized:
    """The awaited answer. A refusal has the client's names of the fields, and its places of messages."""
    try:
        return await answer
    except FieldsRefused as refused:
        raise refused_as_spelled(refused, names, places) from None
