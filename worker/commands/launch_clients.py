"""The configurations of coding agents for a worker, as data: a file, its text, and the command that uses it.

Owns: the agents that `llorch-worker launch` knows, and what each needs. Refuses to know: where the facts come from and
where the files go. Pure: nothing is read or written here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote
from typing import Any

_NO_KEY = "none"
"""The key that agents send if the worker has no token; they insist on having one."""
_PROVIDER = "worker"
_MAX_ANSWER = 16_384
"""The most tokens of an answer that an agent is given to reserve."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """A running worker, as an agent has to know it."""

    url: str
    """The worker's address without a slash at its end."""
    model: str
    context: int
    """The tokens of a conversation, prompt and answer together."""
    token: str | None = None

    @property
    def v1(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def key(self) -> str:
        """The text that the agent sends as its key."""
        return self.token or _NO_KEY

    @property
    def answer(self) -> int:
        """The tokens that an agent may reserve for an answer: a quarter of the context at most."""
        return min(self.context // 4, _MAX_ANSWER)


@dataclass(frozen=True, slots=True)
class Configuration:
    """An agent's configuration file and the command that uses it."""

    path: str
    """The file's path below the user's home."""
    text: str
    start: str
    """The command that starts the agent, as it is typed in a shell."""
    is_shared: bool = False
    """True if the agent has one such file for all its providers: then `text` is merged into it, and is JSON."""


_DELETE = "\x7f"


def _indented(value: Json) -> str:
    """A JSON object for people. DEL is escaped, because YAML does not have it."""
    return f"{json.dumps(value, indent=2, ensure_ascii=False)}\n".replace(_DELETE, "\\u007f")


def _toml(value: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's, except that JSON does not escape DEL."""
    return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")


def claude(served: Served) -> Configuration:
    """Claude Code's settings. Two of its texts differ between requests and spoil the prefix cache."""
    names = ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_")
    variables = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": served.key,
        **{f"ANTHROPIC_{name}MODEL": served.model for name in names},
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.answer),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    path = ".claude/llorch-worker.json"
    return Configuration(path, _indented({"env": variables}), f"claude --settings ~/{path}")


def codex(served: Served) -> Configuration:
    """A profile of Codex. Its own web search is a tool of OpenAI's servers."""
    lines = [
        f"model = {_toml(served.model)}",
        f"model_provider = {_toml(_PROVIDER)}",
        f"model_context_window = {served.context}",
        'web_search = "disabled"',
        "",
        f"[model_providers.{_PROVIDER}]",
        f"name = {_toml(_PROVIDER)}",
        f"base_url = {_toml(served.v1)}",
        'wire_api = "responses"',
        f"experimental_bearer_token = {_toml(served.key)}",
        "",
        "[agents]",
        "enabled = false",
        "",
        "[features]",
        "goals = false",
    ]
    path = ".codex/llorch-worker.config.toml"
    return Configuration(path, "\n".join([*lines, ""]), "codex --profile llorch-worker")


def opencode(served: Served) -> Configuration:
    """A configuration of opencode that is merged with the user's own by the variable."""
    limit = {"context": served.context, "output": served.answer}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        "options": {"baseURL": served.v1, "apiKey": served.key},
        "models": {served.model: {"name": served.model, "limit": limit, "tool_call": True}},
    }
    text = _indented({"$schema": "https://opencode.ai/config.json", "provider": {_PROVIDER: provider}})
    path = ".config/opencode/llorch-worker.json"
    start = f"OPENCODE_CONFIG=~/{path} opencode --model {quote(f'{_PROVIDER}/{served.model}')}"
    return Configuration(path, text, start)


def pi(served: Served) -> Configuration:
    """A provider of pi. All of pi's providers are in one file."""
    model = {"id": served.model, "contextWindow": served.context, "maxTokens": served.answer}
    provider = {"baseUrl": served.v1, "api": "openai-completions", "apiKey": served.key, "models": [model]}
    text = _indented({"providers": {_PROVIDER: provider}})
    start = f"pi --provider {_PROVIDER} --model {quote(served.model)}"
    return Configuration(".pi/agent/models.json", text, start, is_shared=True)


def qwen(served: Served) -> Configuration:
    """Settings of Qwen Code that rank above the user's own while the variable names them."""
    variables = {"OPENAI_API_KEY": served.key, "OPENAI_BASE_URL": served.v1, "OPENAI_MODEL": served.model}
    generation = {
        "contextWindowSize": served.context,
        "samplingParams": {"max_tokens": served.answer},
        # Its timer counts no comments, and its instructions take minutes to read on a CPU.
        "streamIdleTimeoutMs": 0,
    }
    settings = {
        "env": variables,
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": served.model, "generationConfig": generation},
        "privacy": {"usageStatisticsEnabled": False},
    }
    path = ".qwen/llorch-worker.json"
    start = f"QWEN_CODE_SYSTEM_SETTINGS_PATH=~/{path} qwen --auth-type openai"
    return Configuration(path, _indented(settings), start)


def cline(served: Served) -> Configuration:
    """The providers of Cline, in a folder of its own for this worker."""
    settings = {
        "provider": "openai-compatible",
        "apiKey": served.key,
        "model": served.model,
        "baseUrl": served.v1,
    }
    provider = {"settings": settings, "updatedAt": "1970-01-01T00:00:00.000Z", "tokenSource": "manual"}
    known = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}}
    text = _indented(known | {"providers": {"openai-compatible": provider}})
    folder = ".cline/llorch-worker"
    start = f"cline --data-dir ~/{folder} -P openai-compatible -m {quote(served.model)}"
    return Configuration(f"{folder}/settings/providers.json", text, start)


def continue_(served: Served) -> Configuration:
    """A configuration of Continue. JSON is YAML, too."""
    options = {"contextLength": served.context, "maxTokens": served.answer}
    model = {
        "name": served.model,
        "provider": "openai",
        "model": served.model,
        "apiBase": served.v1,
        "apiKey": served.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": options,
    }
    text = _indented({"name": _PROVIDER, "version": "1.0.0", "schema": "v1", "models": [model]})
    path = ".continue/llorch-worker.yaml"
    return Configuration(path, text, f"cn --config ~/{path}")


def aider(served: Served) -> Configuration:
    """A configuration of aider. JSON is YAML, too. Aider does not learn the context's length from this file."""
    settings = {
        "model": f"openai/{served.model}",
        "openai-api-base": served.v1,
        "openai-api-key": served.key,
        "show-model-warnings": False,
        "check-update": False,
        "analytics": False,
    }
    path = ".aider.llorch-worker.yml"
    return Configuration(path, _indented(settings), f"aider --config ~/{path}")


AGENTS: dict[str, Callable[[Served], Configuration]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "pi": pi,
    "qwen": qwen,
    "cline": cline,
    "continue": continue_,
    "aider": aider,
}
"""The name of an agent, as `launch` takes it, and its configuration for a worker."""
