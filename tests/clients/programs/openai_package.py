"""The `openai` package with a worker: `python openai_package.py URL` tries all of it.

Every answer must be what the package's own types say, strictly, with no key that they do not know but those of `OURS`.
Alone in its file, as it runs in an environment that has nothing but the package; tests/clients/test_openai.py runs the
same in the environment of the tests.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pydantic

OURS = {
    "Model.max_model_len",
    "Model.meta",
    "ChatCompletionMessage.reasoning",
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDelta.reasoning",
    "ChoiceDelta.reasoning_content",
    "CompletionChoice.prompt_logprobs",
}
"""Keys that we add on purpose: vLLM's and llama-server's, which clients of those look for."""

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 24}


class City(pydantic.BaseModel):
    """The type that `parse` makes a schema of."""

    name: str
    is_capital: bool


# ── what an answer must be ───────────────────────────────────────────────────────────────────────


def checked(answer: pydantic.BaseModel) -> None:
    """Raises: pydantic.ValidationError for what the package's types forbid, AssertionError for a key of nobody's.

    The package itself validates nothing.
    """
    again = type(answer).model_validate_json(answer.to_json(), strict=True)  # type: ignore[attr-defined]
    strange = set(_extras(again)) - OURS
    assert not strange, strange


def _extras(value: object) -> Iterator[str]:
    if isinstance(value, pydantic.BaseModel):
        yield from (
            f"{type(value).__name__.partition('[')[0].removeprefix('Parsed')}.{key}" for key in value.model_extra or {}
        )
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, list):
        for each in value:
            yield from _extras(each)


# ── what is tried ────────────────────────────────────────────────────────────────────────────────


def models_are_listed_and_found_by_their_ids(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    checked(model)
    checked(client.models.retrieve(model.id))
    assert (model.model_extra or {})["max_model_len"] > 0


def a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=QUESTION, **GREEDY)
    checked(answer)
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.message.role == "assistant"
    assert choice.logprobs is None
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def several_answers_have_their_indexes_and_repeat_with_the_seed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 1.0, "seed": 7, "n": 3}
    one, other = (client.chat.completions.create(messages=QUESTION, **asked) for _ in range(2))
    checked(one)
    assert [choice.index for choice in one.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in one.choices]
    assert texts == [choice.message.content for choice in other.choices]
    assert len(set(texts)) > 1, "each has a seed of its own"


def log_probabilities_are_of_the_answers_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=QUESTION, **GREEDY, logprobs=True, top_logprobs=3)
    checked(answer)
    (choice,) = answer.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    text = b"".join(bytes(token.bytes or ()) for token in tokens).decode()
    assert text.startswith(choice.message.content or "-")
    for token in tokens:
        tops = [top.logprob for top in token.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert (len(tops), tops[0]) == (3, token.logprob)


def a_stream_is_the_same_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)
    chunks = list(client.chat.completions.create(messages=QUESTION, **GREEDY, stream=True))
    for chunk in chunks:
        checked(chunk)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert not choices[-1].delta.content


def usage_comes_last_and_only_when_it_is_asked_for(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY)
    asked: dict[str, Any] = {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(messages=QUESTION, **asked)
    checked(last)
    assert last.choices == []
    assert all(chunk.choices for chunk in chunks)
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def the_accumulator_of_streams_builds_the_same_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY, n=2, logprobs=True)
    with client.chat.completions.stream(messages=QUESTION, **GREEDY, n=2, logprobs=True) as stream:
        kinds = {event.type for event in stream}
        built = stream.get_final_completion()
    checked(built)
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} <= kinds
    for one, other in zip(built.choices, whole.choices, strict=True):
        assert (one.message.content, one.finish_reason) == (other.message.content, other.finish_reason)
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert one.logprobs.content == other.logprobs.content


def an_answer_under_a_schema_is_parsed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 200, "response_format": City}
    answer = client.chat.completions.parse(messages=QUESTION, **asked)
    found = answer.choices[0].message.parsed
    assert isinstance(found, City)
    with client.chat.completions.stream(messages=QUESTION, **asked) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == found
    answer.choices[0].message.parsed = None  # it is the package's own, and of no type that it could write down
    checked(answer)


def any_json_is_an_object(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 200, "response_format": {"type": "json_object"}}
    (choice,) = client.chat.completions.create(messages=QUESTION, **asked).choices
    assert (choice.message.content or "").lstrip().startswith("{")


def text_is_completed(client: openai.OpenAI) -> None:
    prompts = ["The capital of France is", "One, two, three,"]
    answer = client.completions.create(prompt=prompts, **GREEDY)
    checked(answer)
    alone = [client.completions.create(prompt=prompt, **GREEDY).choices[0].text for prompt in prompts]
    assert [choice.text for choice in answer.choices] == alone
    chunks = list(client.completions.create(prompt=prompts, **GREEDY, stream=True))
    for chunk in chunks:
        for choice in chunk.choices:
            # OpenAI says null before the end, which the package's types do not know of.
            choice.finish_reason = choice.finish_reason or "stop"
        checked(chunk)
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert ["".join(piece.text for piece in pieces if piece.index == index) for index in (0, 1)] == alone


def the_prompt_comes_back_with_its_log_probabilities(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 4, "echo": True, "logprobs": 2}
    prompt = "The capital of France is"
    answer = client.completions.create(prompt=prompt, **asked)
    (choice,) = answer.choices
    found: Any = choice.logprobs
    assert choice.text.startswith(prompt)
    assert "".join(found.tokens) == choice.text
    assert found.tokens == [
        choice.text[offset:][: len(token)] for offset, token in zip(found.text_offset, found.tokens, strict=True)
    ]
    # OpenAI says nothing of the first token, which the package's types do not know of.
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    found.token_logprobs[0], found.top_logprobs[0] = 0.0, {}
    checked(answer)
    only_prompt = client.completions.create(prompt=prompt, **{**asked, "max_tokens": 0}).choices[0]
    assert only_prompt.text == prompt
    alone: Any = only_prompt.logprobs
    assert alone.token_logprobs[1:] == found.token_logprobs[1 : len(alone.tokens)]


def a_stop_ends_the_text_and_is_not_shown(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt="One, two, three,", **GREEDY).choices[0].text
    stop = whole[10:14]
    (choice,) = client.completions.create(prompt="One, two, three,", **GREEDY, stop=stop).choices
    assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")


def mistakes_are_the_packages_errors(client: openai.OpenAI) -> None:
    try:
        client.chat.completions.create(messages=QUESTION, model="any", temperature=9)
    except openai.BadRequestError as error:
        assert (error.type, error.param) == ("invalid_request_error", "temperature")
    else:
        raise AssertionError("a temperature of 9 was taken")
    try:
        client.models.retrieve("another")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("there is no such model")


def the_asynchronous_client_gets_the_same_answers(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=QUESTION, **GREEDY).choices[0].message.content
    answers = asyncio.run(_asynchronous(str(client.base_url)))
    assert answers == [whole] * len(answers)


async def _asynchronous(base_url: str) -> list[str | None]:
    """Four answers at once, whole, streamed and accumulated."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        async def whole() -> str | None:
            answer = await client.chat.completions.create(messages=QUESTION, **GREEDY)
            checked(answer)
            text: str | None = answer.choices[0].message.content
            return text

        async def streamed() -> str:
            chunks = await client.chat.completions.create(messages=QUESTION, **GREEDY, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        async def accumulated() -> str | None:
            async with client.chat.completions.stream(messages=QUESTION, **GREEDY) as stream:
                text: str | None = (await stream.get_final_completion()).choices[0].message.content
                return text

        return list(await asyncio.gather(whole(), whole(), streamed(), accumulated()))


TRIED: list[Callable[[openai.OpenAI], None]] = [
    each for each in [*globals().values()] if getattr(each, "__annotations__", {}).get("client") is openai.OpenAI
]


def client_of(url: str) -> openai.OpenAI:
    """A client that asks once and shows every failure."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


if __name__ == "__main__":
    with client_of(sys.argv[1]) as one:
        for each in TRIED:
            each(one)
            print(each.__name__.replace("_", " "))
