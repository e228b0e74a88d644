"""A real engine process whose model follows a script: it calls the tool that an agent offers, and repeats its result.

    python -m tests.scripted_engine FD GENERATION

What it answers depends on the conversation alone. If the last message is a tool's result, it repeats the result. If the
user asks for CRASH, the engine is killed in mid-answer, once; asked again, it answers RECOVERED. If FIND and FORECAST
are offered, it calls FIND, then FORECAST with FIND's result, and repeats the last result. Otherwise it calls the first
tool that runs shell commands with COMMAND; without such a tool it answers TITLE. Calls are in the form of Hermes.
`--ctx-size` is the context length.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.engine.fake_runner import FakeRunner, ToyModel
from tests.server.front.rehearsal import FACTS
from tests.toy_engine import first_draws
from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedModel, Meanwhile, Read, do_nothing
from worker.engine.step import Sampled, Step
from worker.server.process.main import main
from worker.wire.jobs import Prompt, SlotId, TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation

COMMAND = "cat note.txt"
CRASH = "crash in mid-answer"
TITLE = "A note"
SAYS = "The note says: "
RECOVERED = "I am back."
BEFORE_THE_CRASH = "I was about to say something, and then "

CRASHED = "crashed"
"""The file next to the model's that says that the engine has been killed, to the engines after it."""

FIND, FIND_ARGUMENTS = "find_city", {"person": "Ada Lovelace"}
FORECAST, DAYS = "forecast", 3
"""The tools of a loop. The second has the arguments `city`, which is the first's result, and `days`."""

COMMAND_MEMBERS: dict[str, str | list[str]] = {"command": COMMAND, "cmd": COMMAND, "commands": [COMMAND]}
"""The argument that has the shell command, in the tools of the agents that are tried, and its value."""

CONTEXT_LENGTH = 128 * 1024
"""The context length without `--ctx-size`: there is room for every agent's instructions."""
CHUNK = 2048
PIECE_CHARS = 4
N_SCRIPTS = 60
"""The most answers that are remembered: a prompt's first token is the number of its answer."""
END = TokenId(63)


@dataclass(frozen=True, slots=True)
class Script:
    """An answer, a few characters in each token."""

    text: str
    ends_in_a_crash: bool = False

    def pieces(self) -> list[bytes]:
        return [self.text[at : at + PIECE_CHARS].encode() for at in range(0, len(self.text), PIECE_CHARS)]


def script_of(conversation: Conversation, *, has_crashed: bool) -> Script:
    """The answer to a conversation."""
    messages: list[dict[str, Any]] = msgspec.json.decode(conversation.messages)
    tools: list[dict[str, Any]] = msgspec.json.decode(conversation.tools or "[]")
    last = messages[-1]
    if last["role"] == "tool":
        is_between = sum(message["role"] == "tool" for message in messages) == 1 and _has_loop(tools)
        return _calling(FORECAST, {"city": _text(last), "days": DAYS}) if is_between else Script(SAYS + _text(last))
    if any(CRASH in _text(message) for message in messages if message["role"] == "user"):
        return Script(RECOVERED) if has_crashed else Script(BEFORE_THE_CRASH, ends_in_a_crash=True)
    if _has_loop(tools):
        return _calling(FIND, FIND_ARGUMENTS)
    return _call_of_a_shell(tools) or Script(TITLE)


def _calling(name: str, arguments: Mapping[str, Any]) -> Script:
    """The script of a call."""
    call = msgspec.json.encode({"name": name, "arguments": arguments}).decode()
    return Script(f"<tool_call>\n{call}\n</tool_call>")


def _has_loop(tools: Sequence[dict[str, Any]]) -> bool:
    return {tool["function"]["name"] for tool in tools} >= {FIND, FORECAST}


def _text(message: dict[str, Any]) -> str:
    """All that a message says."""
    content: str | list[dict[str, Any]] | None = message.get("content")
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content or [])


def _call_of_a_shell(tools: Sequence[dict[str, Any]]) -> Script | None:
    """The script of a call of the first tool that runs shell commands, with all arguments that it requires."""
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        for member in COMMAND_MEMBERS:
            if member in schema.get("properties", {}):
                return _calling(function["name"], _arguments(schema, member))
    return None


def _arguments(schema: dict[str, Any], member: str) -> dict[str, Any]:
    """The command, and something for every other argument that is required."""
    fillers: dict[str, Any] = {"boolean": False, "integer": 1000, "number": 1000, "array": [], "object": {}}
    required = [name for name in schema.get("required", ()) if name != member]
    others = {name: fillers.get(schema["properties"][name].get("type"), "Read the note") for name in required}
    return {member: COMMAND_MEMBERS[member], **others}


class ScriptedPrompts:
    """The answer's number, then a token for every four characters of the messages and the tools."""

    def __init__(self, crashed: Path) -> None:
        self._crashed = crashed
        self.scripts: list[Script] = [Script(TITLE)] * N_SCRIPTS
        self._n_read = 0

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        if not isinstance(prompt, Conversation):
            return Read([TokenId(0)] * (1 + len(str(prompt)) // PIECE_CHARS), None)
        number = self._n_read % N_SCRIPTS
        self._n_read += 1
        self.scripts[number] = script_of(prompt, has_crashed=self._crashed.exists())
        text = prompt.messages + (prompt.tools or "")
        return Read([TokenId(number)] * (1 + len(text) // PIECE_CHARS), None)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        return "".join("x" for _ in tokens)


class ScriptedRunner(FakeRunner):
    """FakeRunner with answers from scripts instead of draws."""

    def __init__(self, prompts: ScriptedPrompts, n_slots: int, n_cells: int, crashed: Path) -> None:
        super().__init__(ToyModel(n_seen=1), n_slots=n_slots, n_cells=n_cells, chunk=CHUNK, widest_step=CHUNK)
        self._prompts = prompts
        self._crashed = crashed

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:
        return [self._scripted(one, n_said) for one, n_said in first_draws(step, super().run(step, meanwhile))]

    def _scripted(self, sampled: Sampled, n_said: int) -> Sampled:
        script = self._prompts.scripts[self.kv.cells[SlotId(sampled.slot)][0].token]
        pieces = script.pieces()
        if n_said < len(pieces):
            return replace(sampled, token=TokenId(n_said % int(END)), piece=pieces[n_said])
        if script.ends_in_a_crash:
            self._crashed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(sampled, token=END, piece=b"", is_end=True)


def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    on_progress(100)
    crashed = Path(config.model_path).with_name(CRASHED)
    prompts, context_length = ScriptedPrompts(crashed), config.ctx_size or CONTEXT_LENGTH
    facts = replace(FACTS, context_length=context_length, n_cells=2 * CONTEXT_LENGTH, prefill_chunk=CHUNK)
    runner = ScriptedRunner(prompts, FACTS.parallel, facts.n_cells, crashed)
    return LoadedModel(runner, prompts, lambda _: None, facts)


if __name__ == "__main__":
    main(load)
