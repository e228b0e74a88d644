"""The requests that agents send, as shapes: their members, types, roles, numbers and lengths, with texts of our own.

Recorded on 2026-11-25 from these packages of npm, each asked "Say hello in one word." and then "And now in French."
in an empty project, against a server that answers every request with two words:

- `@mariozechner/pi-coding-agent` 0.73.1, as an `openai-completions` provider;
- `opencode-ai` 1.18.33, with `@ai-sdk/openai-compatible`;
- `@qwen-code/qwen-code` 0.24.4, with `--auth-type openai`;
- `@anthropic-ai/claude-code` 2.1.328, whose conversation is brought into the form of chat completions: its `system`
  blocks are the first message, `output_config.effort` is `reasoning_effort`, and what only `/v1/messages` has
  (`thinking`, `context_management`) is left out.

shapes.json has them: each agent's own fields, and of each request the messages, further fields, and those that have no
effect. A message is a role, a text or a list of texts by their names, and what the last one has beside its text.
`tools` are left out everywhere: test_programs.py has the agents themselves call tools. The texts are those of texts.py;
a length of N characters is that of the agent's own text.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.texts import KINDS, text

Json = dict[str, Any]

_TOLD: Json = json.loads((Path(__file__).parent / "shapes.json").read_text())
_TEXTS = {
    name: told if isinstance(told, str) else text(told[0], *(KINDS[kind] for kind in told[1:]))
    for name, told in _TOLD["texts"].items()
}
"""A text's name → itself. They are told as they are, or as a number of characters and the kinds of lines."""
A_TOKEN = 4
"""The number of characters in a token of the texts, rounded: 3.9 to 4.5, depending on the vocabulary."""


@dataclass(frozen=True)
class Shape:
    """A request of an agent's."""

    name: str
    body: Json
    ignored: frozenset[str]
    """The fields that have no effect if the template takes no variables, as `x-ignored-fields` names them."""

    def has_room(self, context: int) -> bool:
        """True if the messages fit in the context. No shape is near the limit of a model that is tried."""
        return sum(len(text_of(message)) for message in self.body["messages"]) < A_TOKEN * context


def text_of(message: Json) -> str:
    """All that a message says; its parts are put together as templates get them."""
    content: str | list[Json] = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _message(role: str, said: str | list[str], beside: Json | None = None) -> Json:
    if isinstance(said, str):
        return {"role": role, "content": _TEXTS[said]}
    parts: list[Json] = [{"type": "text", "text": _TEXTS[name]} for name in said]
    parts[-1] |= {"cache_control": beside} if beside else {}
    return {"role": role, "content": parts}


def _shape(told: Json) -> Shape:
    agent = _TOLD["agents"][told["agent"]]
    messages = [_message(*message) for message in told["messages"]]
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = {"model": "m", "messages": messages, **stream, **agent["fields"], **told.get("more", {})}
    return Shape(f"{told['agent']}: {told['name']}", body, frozenset([*agent["ignored"], *told.get("ignored", [])]))


SHAPES = [_shape(told) for told in _TOLD["shapes"]]
