"""Conversations for a fleet of workers: users in groups with one system prompt each reply to the answers, and several
conversations are open at once.

Owns: the texts (seeded), the time of the next turn, the retry of a failed turn. Refuses to know the servers.
Runs on the load's event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from client.openai import Chunk
from tools.bench.dialects import OK, sse
from tools.bench.exchange import Address, Connection, Exchange, NotReached, connect
from tools.bench.prompts import Prompts, in_sentences

SILENCE_S = 90.0
"""A stream that says nothing for so long hangs."""
_PATH = "/v1/chat/completions"
_TRIES, _PAUSE_S = 30, 1.0
_SHOWN_OF_A_BODY = 200

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The number and size of conversations."""

    n_conversations: int = 200
    n_turns: int = 6
    n_groups: int = 16
    """Each with a system prompt of its own, which its conversations share."""
    n_open: int = 16
    """Conversations at once: when one has ended the next begins."""
    n_system_words: int = 112
    n_user_words: int = 10
    n_answer_tokens: int = 6
    think_s: float = 15.0
    """The mean pause before each question; pauses are uniform between half and one and a half times as long."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The questions, and the user's pause before each turn."""

    system: str
    questions: Sequence[str]
    thinks_s: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and its answer."""

    conversation: int
    turn: int
    first_s: float
    """The time from sending the successful try to its first text."""
    waited_s: float
    """The time since the first try was sent."""
    n_prompt: int
    n_cached: int
    """Tokens of the prompt, and how many of them the worker knew, by the answer's own account."""
    failures: Sequence[str]
    """The reasons why it was asked again, once for each time."""
    is_answered: bool = True
    n_hung: int = 0
    """The tries that sent nothing for SILENCE_S."""


def conversations(shape: Shape, seed: int) -> list[Conversation]:
    """The same seed gives the same ones. The groups come in turn."""
    prompts = Prompts(seed)
    chance = prompts.chance()
    systems = [f"You are a friend. {prompts.of(shape.n_system_words)}." for _ in range(shape.n_groups)]
    return [
        Conversation(
            systems[number % shape.n_groups],
            [f"{in_sentences(prompts.words(shape.n_user_words))}?" for _ in range(shape.n_turns)],
            [shape.think_s * chance.uniform(0.5, 1.5) for _ in range(shape.n_turns)],
        )
        for number in range(shape.n_conversations)
    ]


async def converse(address: Address, shape: Shape, seed: int, report: Callable[[int], None]) -> list[Turn]:
    """All turns; `report` gets their number after each."""
    waiting = list(enumerate(conversations(shape, seed)))[::-1]
    turns: list[Turn] = []

    async def user() -> None:
        while waiting:
            number, conversation = waiting.pop()
            async for turn in _held(address, number, conversation, shape):
                turns.append(turn)
                report(len(turns))

    async with asyncio.TaskGroup() as users:
        for _ in range(shape.n_open):
            users.create_task(user())
    return turns


async def _held(address: Address, number: int, conversation: Conversation, shape: Shape) -> AsyncIterator[Turn]:
    said: list[Message] = [{"role": "system", "content": conversation.system}]
    for place, (question, think_s) in enumerate(zip(conversation.questions, conversation.thinks_s, strict=True)):
        await asyncio.sleep(think_s)
        said.append({"role": "user", "content": question})
        turn, text = await _asked(address, number, place, _body(said, shape.n_answer_tokens))
        yield turn
        said.append({"role": "assistant", "content": text})


def _body(said: Sequence[Message], n_tokens: int) -> bytes:
    body = {
        "model": "any",
        "messages": said,
        "max_tokens": n_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return msgspec.json.encode(body)


async def _asked(address: Address, number: int, place: int, body: bytes) -> tuple[Turn, str]:
    """Asks until it is answered as a user does who presses the button again; gives up after _TRIES."""
    failures: list[str] = []
    begun_s: float | None = None
    n_hung = 0
    for _ in range(_TRIES):
        try:
            async with _connected(address) as connection:
                exchange = await connection.ask("POST", _PATH, body)
        except NotReached as error:
            failures.append(str(error))
        else:
            begun_s = exchange.sent_s if begun_s is None else begun_s
            answer = read(exchange)
            if not answer.error:
                turn = Turn(
                    conversation=number,
                    turn=place,
                    first_s=answer.first_s - exchange.sent_s,
                    waited_s=answer.first_s - begun_s,
                    n_prompt=answer.n_prompt,
                    n_cached=answer.n_cached,
                    failures=failures,
                    n_hung=n_hung,
                )
                return turn, answer.text
            failures.append(answer.error)
            n_hung += exchange.broken.startswith("nothing for")
        await asyncio.sleep(_PAUSE_S)
    lost = Turn(
        conversation=number,
        turn=place,
        first_s=0.0,
        waited_s=0.0,
        n_prompt=0,
        n_cached=0,
        failures=failures,
        is_answered=False,
        n_hung=n_hung,
    )
    return lost, ""


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[Connection]:
    connection = await connect(address, SILENCE_S)
    try:
        yield connection
    finally:
        connection.close()


@dataclass(slots=True)
class Read:
    """The content of a stream."""

    text: str = ""
    first_s: float = 0.0
    n_prompt: int = 0
    n_cached: int = 0
    n_ends: int = field(default=0, repr=False)
    error: str = ""
    """The reason why it is no whole answer; empty for one."""


def read(exchange: Exchange) -> Read:
    """True if the answer ended once, reported its usage, and its HTTP did not break off."""
    if exchange.status != OK:
        shown = exchange.body[:_SHOWN_OF_A_BODY].decode("utf-8", "replace")
        return Read(error=f"{exchange.status} {shown}" if exchange.status else f"no answer: {exchange.broken}")
    found = Read()
    for at_s, data in sse(exchange):
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except msgspec.DecodeError as error:
            return Read(error=f"no chunk: {error}")
        if chunk.error is not None:
            return Read(error=chunk.error.message)
        if chunk.usage is not None:
            found.n_prompt = chunk.usage.prompt_tokens
            found.n_cached = chunk.usage.prompt_tokens_details.cached_tokens
        for choice in chunk.choices:
            found.first_s = found.first_s or (at_s if choice.delta.content else 0.0)
            found.text += choice.delta.content or ""
            found.n_ends += choice.finish_reason is not None
    if exchange.broken or found.n_ends != 1 or not found.n_prompt or not found.text:
        found.error = f"cut: {exchange.broken or f'{found.n_ends} ends, {found.n_prompt} prompt tokens'}"
    return found
