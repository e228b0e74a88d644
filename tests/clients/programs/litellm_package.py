"""The `litellm` package with a worker: `python litellm_package.py URL` tries all of it."""

import asyncio
import sys
from typing import Any

import litellm

MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def main(url: str) -> None:
    asked: dict[str, Any] = {
        "model": "openai/any",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 24,
        "max_retries": 0,
    }
    whole = litellm.completion(**asked)
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.choices[0].finish_reason in {"stop", "length"}
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == text
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert asyncio.run(_asynchronous(asked)) == [text, text]
    try:
        litellm.completion(**{**asked, "temperature": 9})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature of 9 was taken")
    completed = litellm.text_completion(
        model="text-completion-openai/any",
        api_base=f"{url}/v1",
        api_key="none",
        prompt="The capital of France is",
        temperature=0,
        max_tokens=8,
    )
    assert completed.choices[0].text
    print("litellm: whole, streamed, asynchronous, refused, completed")


async def _asynchronous(asked: dict[str, Any]) -> list[str]:
    """The answer whole and in pieces, at once."""

    async def whole() -> str:
        text: str = (await litellm.acompletion(**asked)).choices[0].message.content
        return text

    async def streamed() -> str:
        chunks = await litellm.acompletion(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    return list(await asyncio.gather(whole(), streamed()))


if __name__ == "__main__":
    main(sys.argv[1])
