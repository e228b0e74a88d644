"""A conversation in another protocol's form becomes messages in OpenAI's form, one part after the other.

Two spellings of one conversation become the same messages, so that their prompts have the same prefix. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import BETWEEN_PARTS, read_conversation
from worker.apis.core.errors import replaced, respelled
from worker.apis.core.request import Terms
from worker.apis.core.thinking import Thinking
from worker.apis.core.tools import Offered
from worker.wire.prompts import Conversation

KIND = re.compile(r"[a-z_]{1,40}")
"""An answer may name a type of this form, but no text that was sent by mistake."""
MAY_BE_EMPTY = "is missing; send a text, which may be empty"


class Turns:
    """The messages so far. Consecutive parts of the assistant are one message: reasoning, text and calls."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        """The place of each message, or of its first part."""
        self.left_out: list[str] = []
        """The names of what the model does not get."""

    def say(self, role: str, text: str, place: str) -> None:
        """Add a message of a user or of the system."""
        self._add({"role": role, "content": text}, place)

    def answer(self, text: str, place: str) -> None:
        """Add text of the assistant."""
        self._append("content", text, place)

    def think(self, text: str, place: str) -> None:
        """Add reasoning of the assistant."""
        self._append("reasoning_content", text, place)

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any], place: str) -> None:
        """Add a call by the assistant."""
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistants(place).setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, text: str, place: str) -> None:
        """Add the result of a call."""
        self._add({"role": "tool", "tool_call_id": call_id, "content": text}, place)

    def leave_out(self, place: str, kind: str) -> str:
        """Name a picture or a file that is left out. Return the text in its place."""
        self.left_out.append(f"{place}.{kind}")
        return f"[{kind.removeprefix('input_')} left out: this model reads text only]"

    def refuse(self, place: str, rule: str, text: str) -> None:
        """Add a problem, unless there are enough."""
        if not self.problems.is_full:
            self.problems.add(place, rule, text)

    def needed(self, place: str, part: msgspec.Struct, field: str, text: str = "is missing") -> str:
        """The text in the field, which must be there."""
        value: str | None = getattr(part, field)
        if value is None:
            self.refuse(f"{place}.{field}", "required", text)
        return value or ""

    def _append(self, field: str, text: str, place: str) -> None:
        message = self._assistants(place)
        message[field] = f"{message[field]}{BETWEEN_PARTS}{text}" if message.get(field) else text

    def _assistants(self, place: str) -> dict[str, Any]:
        """The last message if it is the assistant's, else a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": None}, place)
        return self.messages[-1]

    def _add(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)


def joined(texts: Iterable[str]) -> str:
    """The text of a content's parts: a text is the same content as the list with this one part."""
    return BETWEEN_PARTS.join(texts)


def got(kind: str) -> str:
    """The type that was sent, for the end of an error, if it may be named."""
    return f" (got {kind})" if KIND.fullmatch(kind) else ""


def read_turns(
    turns: Turns,
    thinking: Thinking,
    offered: Offered,
    terms: Terms,
    *,
    names: Mapping[str, str],
    is_continued: bool = False,
) -> Conversation | None:
    """The conversation of another protocol; None if a rule is broken. If it is continued, the answer goes on with the
    last message. `names`: the client's names of a chat's fields."""
    if turns.problems.found:
        return None
    own = Problems()
    made = read_conversation(
        own,
        turns.messages,
        tools=offered.use.for_template(),
        template_kwargs=thinking.variables,
        add_generation_prompt=not is_continued,
        continue_final_message=is_continued,
        max_chars=terms.max_text_chars,
    )
    turns.problems.found += respelled(replaced(own.found, turns.places), names)
    return made
