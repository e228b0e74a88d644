"""Random requests to every route that generates: all sampling fields, constraints, tools, reasoning, several answers.

Pure: `Random` decides all. A request draws its tokens with a seed of its own wherever chance matters, so that it has
one right answer.
"""

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.random_schemas import random_schema

Json = dict[str, Any]

EXECUTE, COMPLETIONS, CHAT = "/execute", "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

TABLE: Json = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The values that are drawn."""
_PLAIN: Json = {"type": "object", "properties": {"x": {"type": "integer"}}}
_TOKENS = range(3, 300)
_SHARE = 0.12
"""The share of requests that has a field."""
SALTS = (None, None, None, "a", "größe", "s" * 256)
"""Few, so that requests with common prefixes have one salt, several, and none."""


class Ask(msgspec.Struct, frozen=True):
    """A request. A job's name is no part of it; the player gives it one."""

    path: str
    body: Json

    @property
    def digest(self) -> str:
        """Requests with the same digest have the same answer. A salt changes none."""
        body = {name: value for name, value in self.body.items() if name != "cache_salt"}
        return hashlib.sha256(msgspec.json.encode([self.path, body], order="sorted")).hexdigest()

    @property
    def is_stream(self) -> bool:
        return self.path == EXECUTE or bool(self.body.get("stream"))

    def encoded(self, job_id: str) -> bytes:
        """The bytes on the wire; `job_id` is sent where the route takes one."""
        return msgspec.json.encode({"job_id": job_id, **self.body} if self.path == EXECUTE else self.body)


class Asks:
    """Requests that share their prefixes as those of agents do, and of which some are repeats."""

    def __init__(self, rng: Random, *, repeats: float = 0.3) -> None:
        self._rng = rng
        self._repeats = repeats
        # Chance of its own: without their salts, a seed's requests are what they were before there were any.
        self._salts = Random(repr(rng.getstate()))  # noqa: S311 - chance that can be repeated, not a secret
        self._themes = [self._words(rng.randint(5, 60)) for _ in range(4)]
        self._tools = [_tools(rng) for _ in range(2)]
        self._seen: list[Ask] = []

    def draw(self) -> Ask:
        """The next request: a repeat, perhaps with another salt, or a new one."""
        salt = self._salts.choice(SALTS)
        ask = self._unsalted()
        return Ask(ask.path, ask.body | {"cache_salt": salt}) if salt else ask

    def _unsalted(self) -> Ask:
        if self._seen and self._rng.random() < self._repeats:
            return self._rng.choice(self._seen)
        kinds: list[Callable[[], Ask]] = [self._execute, self._completion, self._chat, self._response, self._message]
        self._seen.append(self._rng.choice(kinds)())
        return self._seen[-1]

    def _words(self, n: int) -> str:
        return " ".join(self._rng.choices(TABLE["words"], k=n))

    def _prompt(self) -> str:
        """A prefix that others have too, up to a place that is drawn, and a few words of its own."""
        theme = self._rng.choice(self._themes)
        end = self._rng.choice([len(theme), len(theme), self._rng.randint(1, len(theme))])
        return f"{theme[:end]} {self._words(self._rng.randint(0, 12))}"

    def _turns(self) -> list[Json]:
        turns: list[Json] = [{"role": "user", "content": self._rng.choice(self._themes)}]
        for _ in range(self._rng.choice([0, 0, 1, 2])):
            turns += [
                {"role": "assistant", "content": self._words(3)},
                {"role": "user", "content": self._words(self._rng.randint(1, 12))},
            ]
        return turns

    def _has(self, share: float = _SHARE) -> bool:
        return self._rng.random() < share

    def _length(self) -> int:
        return self._rng.choice([1, 2, 4, 8, 8, 16, 16, 24, 32, 48, 64, 160])

    def _sampling(self) -> Json:
        """Fields that all routes have. Chance always has a seed."""
        rng = self._rng
        fields: Json = {"temperature": rng.choice([0.0, 0.0, 0.7, 1.0, 1.0, 1.6]), "seed": rng.randrange(2**40)}
        fields |= {name: rng.choice(values) for name, values in TABLE["sampling"].items() if self._has()}
        if self._has():
            fields["logit_bias"] = {
                str(rng.choice(_TOKENS)): rng.choice(TABLE["biases"]) for _ in range(rng.randint(1, 4))
            }
        if self._has():
            fields["stop_token_ids"] = rng.sample(_TOKENS, rng.randint(1, 20))
        return fields

    def _lengths(self) -> Json:
        """Fields of an answer's end."""
        n_tokens, rng = self._length(), self._rng
        fields: Json = {"max_tokens": n_tokens}
        if self._has():
            fields["min_tokens"] = rng.randint(0, n_tokens)
        if self._has(0.3):
            fields["stop"] = rng.sample(["a", "e", "1", "ab", "\n", "}", "xa"], rng.randint(1, 4))
        return fields

    def _constraint(self) -> Json:
        """Draw at most one constraint in the spelling of `/execute`, or the ban of end tokens, which goes without."""
        rng = self._rng
        if not self._has(0.25):
            return {"ignore_eos": True} if self._has(0.3) else {}
        kinds = {
            "regex": rng.choice(TABLE["regexes"]),
            "grammar": rng.choice(TABLE["grammars"]),
            "json_schema": self._schema(),
        }
        name = rng.choice([*kinds])
        return {name: kinds[name]}

    def _schema(self) -> Json:
        return random_schema(self._rng.randrange(400))

    def _foreign_constraint(self) -> Json:
        """A constraint in OpenAI's and vLLM's spellings."""
        rng = self._rng
        return rng.choice(
            [
                {"response_format": {"type": "json_object"}},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": self._schema()}}},
                {"structured_outputs": {"choice": rng.choice(TABLE["choices"])}},
                {"guided_regex": rng.choice(TABLE["regexes"])},
                {"structured_outputs": {"grammar": rng.choice(TABLE["grammars"])}},
            ]
        )

    def _prediction(self) -> Json:
        return {"prediction": {"type": "content", "content": self._words(8)}} if self._has() else {}

    def _streaming(self) -> Json:
        """`stream`, with the options that chats and completions have for it."""
        if not self._has(0.6):
            return {}
        options = [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
        return {"stream": True, "stream_options": self._rng.choice(options)}

    def _execute(self) -> Ask:
        source: Json = {"messages": self._turns()} if self._has(0.2) else {"prompt": self._prompt()}
        logprobs: Json = {"logprobs": self._rng.choice([0, 1, 5])} if self._has(0.3) else {}
        return Ask(EXECUTE, {**source, **self._sampling(), **self._lengths(), **self._constraint(), **logprobs})

    def _completion(self) -> Ask:
        rng = self._rng
        tokens = rng.choices(_TOKENS, k=rng.randint(1, 40))
        prompt = rng.choice([self._prompt(), self._prompt(), [self._prompt(), self._prompt()], tokens, [tokens, [3]]])
        more: Json = self._constraint() if self._has(0.7) else self._foreign_constraint()
        if self._has(0.3):
            more["n"] = rng.choice([2, 3, 5])
        if self._has(0.3):
            more["logprobs"] = rng.choice([0, 1, 5])
        if self._has(0.2):
            more["echo"] = True
        if self._has():
            more["prompt_logprobs"] = rng.choice([0, 2])
        if self._has():
            more["return_tokens_as_token_ids"] = True
        fields = {**self._sampling(), **self._lengths(), **self._prediction(), **self._streaming()}
        return Ask(COMPLETIONS, {"prompt": prompt, **fields, **more})

    def _chat(self) -> Ask:
        more: Json = self._tool_use() if self._has(0.4) else self._free_chat()
        if self._has(0.2):
            more["n"] = self._rng.choice([2, 3])
        if self._has(0.3):
            more |= {"logprobs": True, "top_logprobs": self._rng.choice([0, 1, 5])}
        fields = {**self._sampling(), **self._lengths(), **self._prediction(), **self._streaming()}
        return Ask(CHAT, {"messages": self._turns(), **fields, **more})

    def _free_chat(self) -> Json:
        rng = self._rng
        fields = rng.choice([self._constraint(), self._constraint(), self._foreign_constraint()])
        if self._has():
            fields["thinking_token_budget"] = rng.choice([0, 1, 5])
        if self._has():
            fields["reasoning_effort"] = rng.choice(["none", "low", "high"])
        if self._has(0.05):
            fields["skip_special_tokens"] = False
        return fields

    def _tool_use(self) -> Json:
        tools = self._rng.choice(self._tools)
        named = {"type": "function", "function": {"name": tools[0]["name"]}}
        fields: Json = {"tools": [{"type": "function", "function": tool} for tool in tools]}
        fields["tool_choice"] = self._rng.choice(["auto", "required", "none", named])
        if self._has():
            fields["parallel_tool_calls"] = False
        return fields

    def _response(self) -> Ask:
        rng = self._rng
        more: Json = {"instructions": rng.choice(self._themes)} if self._has(0.4) else {}
        if self._has(0.4):
            tools = rng.choice(self._tools)
            more["tools"] = [{"type": "function", **tool} for tool in tools]
            more["tool_choice"] = rng.choice(["auto", "required", {"type": "function", "name": tools[-1]["name"]}])
        elif self._has(0.3):
            more["text"] = {"format": {"type": "json_schema", "name": "it", "schema": self._schema()}}
        if self._has():
            more["reasoning"] = {"effort": rng.choice(["none", "low"]), "summary": rng.choice([None, "auto"])}
        source: list[Json] | str = self._turns() if self._has(0.5) else self._prompt()
        stream: Json = {"stream": True} if self._has(0.6) else {}
        fields = {**self._sampling(), "max_output_tokens": self._length(), **stream}
        return Ask(RESPONSES, {"input": source, **fields, **more})

    def _message(self) -> Ask:
        rng = self._rng
        more: Json = {"system": rng.choice(self._themes)} if self._has(0.5) else {}
        if self._has(0.4):
            tools = rng.choice(self._tools)
            more["tools"] = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
            named = {"type": "tool", "name": tools[0]["name"]}
            more["tool_choice"] = rng.choice([{"type": "auto"}, {"type": "any"}, named])
        elif self._has(0.3):
            more["output_config"] = {"format": {"type": "json_schema", "schema": self._schema()}}
        if self._has():
            more["stop_sequences"] = rng.sample(["a", "1", "\n"], 2)
        if self._has():
            more["thinking"] = rng.choice([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 8}])
        stream: Json = {"stream": True} if self._has(0.6) else {}
        fields = {**self._sampling(), "max_tokens": self._length(), **stream}
        return Ask(MESSAGES, {"messages": self._turns(), **fields, **more})


def _tools(rng: Random) -> list[Json]:
    """One tool or two, with schemas of ordinary shape."""
    schemas = [random_schema(rng.randrange(400)) for _ in range(rng.randint(1, 2))]
    objects = [schema if schema.get("type") == "object" else _PLAIN for schema in schemas]
    return [{"name": f"tool_{at}", "parameters": schema} for at, schema in enumerate(objects)]
