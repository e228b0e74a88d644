"""The requests that agents send, as shapes: their members, types, roles, numbers and lengths, with texts of our own.

Recorded on 2026-11-25 from these packages of npm, each asked "Say hello in one word." and then "And now in French."
in an empty project, against a server that answers every request with two words:

- `@mariozechner/pi-coding-agent` 0.73.1, as an `openai-completions` provider;
- `opencode-ai` 1.18.33, with `@ai-sdk/openai-compatible`;
- `@qwen-code/qwen-code` 0.24.4, with `--auth-type openai`;
- `@anthropic-ai/claude-code` 2.1.328, whose conversation is brought into the form of chat completions: its `system`
  blocks are the first message, `output_config.effort` is `reasoning_effort`, and what only `/v1/messages` has
  (`thinking`, `context_management`) is left out.

`tools` are left out everywhere: test_programs.py has the agents themselves call tools. The texts are those of texts.py;
a length of N characters is that of the agent's own text.
"""

from dataclasses import dataclass
from typing import Any

from tests.agents.texts import markdown, plain, tagged, text

Json = dict[str, Any]

ASKED = "Say hello in one word."
ANSWERED = "Hello there."
ASKED_AGAIN = "And now in French."

_STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}
_FOR_AN_HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
_EPHEMERAL: Json = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True)
class Shape:
    """A request of an agent's."""

    name: str
    body: Json
    ignored: frozenset[str] = frozenset()
    """The fields that have no effect if the template takes no variables, as `x-ignored-fields` names them."""

    @property
    def n_characters(self) -> int:
        """The characters of all messages together."""
        return sum(len(text_of(message)) for message in self.body["messages"])


def text_of(message: Json) -> str:
    """All that a message says; its parts are put together as templates get them."""
    content: str | list[Json] = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _message(role: str, content: str) -> Json:
    """A message whose content is one text."""
    return {"role": role, "content": content}


def _parts(role: str, *texts: str, last: Json | None = None) -> Json:
    """A message whose content is a list of texts; `last` is what the last one has beside its text."""
    parts: list[Json] = [{"type": "text", "text": one} for one in texts]
    parts[-1] |= last or {}
    return {"role": role, "content": parts}


# ── pi ───────────────────────────────────────────────────────────────────────────────────────────

_PI_RULES = text(2424, plain)


def _pi(name: str, *messages: Json, ignored: tuple[str, ...] = (), **more: Any) -> Shape:
    body = {"model": "m", "messages": [*messages], **_STREAM, "store": False, "max_completion_tokens": 4096}
    return Shape(f"pi: {name}", body | more, frozenset({"store", *ignored}))


PI = (
    _pi("a question", _message("system", _PI_RULES), _parts("user", ASKED)),
    _pi(
        "the next question",
        _message("system", _PI_RULES),
        _parts("user", ASKED),
        _message("assistant", ANSWERED),
        _parts("user", ASKED_AGAIN),
    ),
    _pi(
        "where no size is configured",
        _message("system", _PI_RULES),
        _parts("user", ASKED),
        max_completion_tokens=16384,
    ),
    _pi(
        "a conversation to be summed up",
        _message("system", text(317, plain)),
        _parts("user", text(912, tagged, plain)),
        max_completion_tokens=13107,
    ),
    _pi(
        "a model that reasons",
        _message("developer", _PI_RULES),
        _parts("user", ASKED),
        reasoning_effort="high",
        ignored=("reasoning_effort",),
    ),
    _pi(
        "reasoning as Qwen's own API has it",
        _message("developer", _PI_RULES),
        _parts("user", ASKED),
        enable_thinking=True,
        ignored=("enable_thinking",),
    ),
    _pi(
        "a cache that keeps for long",
        _parts("developer", _PI_RULES, last=_FOR_AN_HOUR),
        _parts("user", ASKED),
        _message("assistant", ANSWERED),
        _parts("user", ASKED_AGAIN, last=_FOR_AN_HOUR),
        prompt_cache_key="01a2150f-07d5-70b1-9dc7-a839666e0ca8",
        prompt_cache_retention="24h",
        ignored=("messages.content.cache_control", "prompt_cache_key", "prompt_cache_retention"),
    ),
)

# ── opencode ─────────────────────────────────────────────────────────────────────────────────────

_OPENCODE_RULES = text(9575, markdown, tagged, plain)


def _opencode(name: str, *messages: Json, ignored: tuple[str, ...] = (), **more: Any) -> Shape:
    body = {"model": "m", "max_tokens": 4096, "messages": [*messages], **_STREAM}
    return Shape(f"opencode: {name}", body | more, frozenset(ignored))


OPENCODE = (
    _opencode(
        "a title",
        _message("system", text(2096, tagged, plain)),
        _message("user", text(39, plain) + "\n"),
        _message("user", f'"{ASKED}"'),
        temperature=0.5,
    ),
    _opencode("a question", _message("system", _OPENCODE_RULES), _message("user", f'"{ASKED}"'), tool_choice="auto"),
    _opencode(
        "the next question",
        _message("system", _OPENCODE_RULES),
        _message("user", f'"{ASKED}"'),
        _message("assistant", ANSWERED),
        _message("user", f'"{ASKED_AGAIN}"'),
        tool_choice="auto",
    ),
    _opencode(
        "where no size is configured",
        _message("system", _OPENCODE_RULES),
        _message("user", f'"{ASKED}"'),
        max_tokens=32000,
        tool_choice="auto",
    ),
    _opencode(
        "a model with options",
        _message("system", _OPENCODE_RULES),
        _message("user", f'"{ASKED}"'),
        tool_choice="auto",
        reasoning_effort="high",
        verbosity="low",
        promptCacheKey="ses_deaf35a88ffeur8Wg3xQwbvOt0",
        ignored=("promptCacheKey", "reasoning_effort", "verbosity"),
    ),
)

# ── Qwen Code ────────────────────────────────────────────────────────────────────────────────────

_QWEN_RULES = text(28914, markdown, plain, tagged)
_QWEN_REMINDERS = (text(6099, tagged), text(392, tagged), text(2625, tagged, plain))
_QWEN_DATE = text(227, tagged)


def _qwen(name: str, *messages: Json, **more: Any) -> Shape:
    body = {"model": "m", "messages": [*messages], "max_tokens": 32000, **_STREAM}
    return Shape(f"Qwen Code: {name}", body | more)


QWEN_CODE = (
    _qwen("a question", _message("system", _QWEN_RULES), _parts("user", *_QWEN_REMINDERS, _QWEN_DATE, ASKED)),
    _qwen(
        "the next question",
        _message("system", _QWEN_RULES),
        _parts("user", *_QWEN_REMINDERS, ASKED),
        _message("assistant", ANSWERED),
        _parts("user", _QWEN_DATE, ASKED_AGAIN),
    ),
    _qwen(
        "what is worth keeping",
        _message("system", text(16140, markdown, tagged)),
        _parts("user", *_QWEN_REMINDERS, _QWEN_DATE, ASKED),
        _message("assistant", ANSWERED),
        _parts("user", text(2526, markdown)),
    ),
    _qwen(
        "sampling of the user's own",
        _message("system", _QWEN_RULES),
        _parts("user", *_QWEN_REMINDERS, _QWEN_DATE, ASKED),
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        repetition_penalty=1.05,
        max_tokens=4096,
    ),
)

# ── Claude Code ──────────────────────────────────────────────────────────────────────────────────

_CLAUDE_RULES = _parts("system", text(74, plain), text(62, plain), text(5554, plain, markdown), last=_EPHEMERAL)
_CLAUDE_REMINDERS = (text(560, tagged), text(576, tagged))
_CLAUDE_PLACE = text(9126, markdown, plain)
"""It comes after the user's question, with the role of the system."""


def _claude(name: str, *messages: Json) -> Shape:
    asked: Json = {"metadata": {"user_id": '{"device_id":"0","session_id":"0"}'}, "reasoning_effort": "high"}
    body = {"model": "m", "max_tokens": 32000, "messages": [*messages], **_STREAM, **asked}
    ignored = frozenset({"metadata", "messages.content.cache_control", "reasoning_effort"})
    return Shape(f"Claude Code: {name}", body, ignored)


CLAUDE_CODE = (
    _claude(
        "a question",
        _CLAUDE_RULES,
        _parts("user", *_CLAUDE_REMINDERS, ASKED),
        _parts("system", _CLAUDE_PLACE, last=_EPHEMERAL),
    ),
    _claude(
        "the next question",
        _CLAUDE_RULES,
        _parts("user", *_CLAUDE_REMINDERS, ASKED),
        _message("system", _CLAUDE_PLACE),
        _parts("assistant", ANSWERED),
        _parts("user", ASKED_AGAIN, last=_EPHEMERAL),
    ),
)

SHAPES = (*PI, *OPENCODE, *QWEN_CODE, *CLAUDE_CODE)
