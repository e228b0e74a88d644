"""`llorch-worker chat render` and `chat parse`: what the worker does with conversations and answers, line by line.

Owns: the JSON objects on stdin and stdout. It reads no weights; with --model, llama.cpp reads the file's vocabulary.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import rich_click as click

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import read_conversation
from worker.commands.places import present, where
from worker.formats.read.parse import Arguments, CallBegun, Content, Delta, Reader, Thought, message_of
from worker.formats.render.escapes import Names
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.formats.tool_format import chat_format
from worker.models.facts.info import read_words
from worker.wire.chat_format import ChatFormat
from worker.wire.encoding import encode_json
from worker.wire.jobs import TokenId
from worker.wire.refusals import Violation

if TYPE_CHECKING:
    from worker.llama.model import Model

_MAX_CHARS = 1 << 24
"""The limit on a conversation's text."""
_N_TEMPLATES = 16
"""The number of templates that are kept compiled."""
_KINDS: tuple[Literal["bos", "eos", "pad"], ...] = ("bos", "eos", "pad")
_TOKENS = tuple(f"{kind}_token" for kind in _KINDS)
"""The tokens whose names templates read."""


class RenderLine(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to render."""

    messages: Any
    template: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    kwargs: dict[str, Any] | None = None


class ParseLine(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to read: a text, pieces of a text, or tokens."""

    template: str | None = None
    tools: list[dict[str, Any]] | None = None
    prompt: str | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    chunks: list[str] | None = None


class LineError(Exception):
    """A line that has no answer; the message says why."""


_model = click.option("--model", metavar="REF", help="Use the template and the vocabulary of this model.")


@click.command("render")
@_model
@where
def render(model: str | None, models_dir: Path, catalog: Path | None) -> None:
    """Render conversations to prompts.

    Each line of stdin is a JSON object: messages, and optionally template, tools, add_generation_prompt and kwargs.
    The line of stdout that answers it has the prompt, or the error.
    """
    _answer_lines(RenderLine, Lines(model, models_dir, catalog).rendered)


@click.command("parse")
@_model
@where
def parse(model: str | None, models_dir: Path, catalog: Path | None) -> None:
    """Read answers: their content, reasoning and tool calls.

    Each line of stdin is a JSON object: text, chunks or token_ids, and optionally template, tools and prompt. The line
    of stdout that answers it has the message and its deltas, or the error. Token ids need --model.
    """
    _answer_lines(ParseLine, Lines(model, models_dir, catalog).parsed)


Line = TypeVar("Line", RenderLine, ParseLine)


def _answer_lines(shape: type[Line], answer: Callable[[Line], dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        try:
            sent = msgspec.json.decode(line)
            if not isinstance(sent, dict):
                raise LineError("the line is not a JSON object")
            found = answer(msgspec.convert(sent, shape))
            ignored = sorted(sent.keys() - {field.name for field in msgspec.structs.fields(shape)})
            if ignored := ignored + found.pop("ignored", []):
                found["ignored"] = ignored
        except (LineError, msgspec.ValidationError) as error:
            found = {"error": str(error)}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = {"error": f"the line is not JSON: {error}"}
        except RecursionError:
            found = {"error": "the line is nested too deeply"}
        sys.stdout.buffer.write(encode_json(found) + b"\n")
        sys.stdout.buffer.flush()


def _opened(path: Path) -> tuple[Path, str | None, str | None, "Model"]:
    """The file of `--model`, its templates and its model. Raises: ModelNotFound, BadModelFile, ModelLoadFailed."""
    from worker.llama.model import Model  # noqa: PLC0415 - this loads llama.cpp

    gaps, template, for_tools = read_words(path)
    return path, template, for_tools, Model.load_vocabulary(path, gaps)


class Lines:
    """The answers to lines."""

    def __init__(self, reference: str | None, models_dir: Path, catalog: Path | None) -> None:
        """Raises: ModelNotFound, BadModelFile, ModelLoadFailed."""
        self._templates = lru_cache(_N_TEMPLATES)(self._compiled)
        self._file = None if reference is None else _opened(present(reference, models_dir, catalog))

    def rendered(self, line: RenderLine) -> dict[str, Any]:
        """Return the answer to a line of `chat render`: the prompt. Raises: LineError."""
        kwargs = dict(line.kwargs or {})
        names = tuple((name, str(kwargs.pop(name))) for name in _TOKENS if name in kwargs)
        chat, _ = self._templates(line.template, names)
        problems = Problems()
        asked = read_conversation(
            problems,
            line.messages,
            tools=line.tools or None,
            template_kwargs=kwargs,
            add_generation_prompt=line.add_generation_prompt,
            max_chars=_MAX_CHARS,
        )
        if asked is None:
            raise LineError("; ".join(error.message for error in problems.found))
        found = chat.read(asked)
        if isinstance(found, Violation):
            raise LineError(found.message)
        return {"prompt": found.text, "ignored": sorted(f"kwargs.{name}" for name in kwargs.keys() - chat.keys)}

    def parsed(self, line: ParseLine) -> dict[str, Any]:
        """Return the answer to a line of `chat parse`: the message in a text, and its deltas. Raises: LineError."""
        _, form = self._templates(line.template, ())
        is_reasoning = line.prompt is not None and form.opens_reasoning(line.prompt)
        reader = Reader(form, _offered(line.tools or []), new_id="call{:05}".format, is_reasoning=is_reasoning)
        deltas = [delta for piece in self._pieces(line, form) for delta in reader.push(piece)]
        deltas += reader.finish(is_stopped=True)
        message = _message(deltas, is_unfinished=reader.is_unfinished)
        return {"message": message, "deltas": [_delta(delta) for delta in deltas]}

    def _pieces(self, line: ParseLine, form: ChatFormat) -> list[str]:
        """Return the text to read, in the pieces in which it was sent; of tokens up to the end of the answer. Control
        tokens have no text unless they are part of a marker. Raises: LineError.
        """
        if sum(value is not None for value in (line.text, line.chunks, line.token_ids)) != 1:
            raise LineError("send one of text, chunks and token_ids")
        if line.token_ids is None:
            return [line.text] if line.text is not None else line.chunks or []
        if self._file is None:
            raise LineError("token_ids need a vocabulary; start the command with --model REF")
        *_, model = self._file
        for token in line.token_ids:
            if not 0 <= token < model.n_vocab:
                raise LineError(f"token id {token} is outside the vocabulary, whose ids are 0 to {model.n_vocab - 1}")
        hidden = {token for name, token in model.controls.items() if not any(name in marker for marker in form.markers)}
        answer = takewhile(lambda token: not model.is_end(token), map(TokenId, line.token_ids))
        return [model.detokenize(token for token in answer if token not in hidden).decode(errors="replace")]

    def _compiled(self, source: str | None, names: tuple[tuple[str, str], ...]) -> tuple[ChatTemplates, ChatFormat]:
        """The template and its format. `names`: the tokens that templates read, in the line. Raises: LineError."""
        for_tools, controls, ends, tokens = None, Names(()), frozenset[str](), dict.fromkeys(_TOKENS, "")
        why = "no template; send one as template, or start the command with --model REF"
        if self._file is not None:
            path, own, own_for_tools, model = self._file
            controls, ends = Names(model.controls), model.end_names
            tokens = {f"{kind}_token": model.name_of(kind) or "" for kind in _KINDS}
            why = f"{path} has no chat template; send one as template"
            if source is None:
                source, for_tools = own, own_for_tools
        if source is None:
            raise LineError(why)
        try:
            chat = ChatTemplates(source, for_tools, names=controls, tokens=tokens | dict(names), variables={})
        except BrokenTemplate as error:
            raise LineError(f"the chat template cannot be used: {error}") from None
        return chat, chat_format(chat.for_tools, ends)


def _offered(tools: list[dict[str, Any]]) -> dict[str, object]:
    """The schemas of the arguments, by the tools' names. Raises: LineError."""
    offered: dict[str, object] = {}
    for place, tool in enumerate(tools):
        match tool.get("function", tool):
            case {"name": str(name), **rest}:
                offered[name] = rest.get("parameters") or {}
            case _:
                raise LineError(f"tools[{place}] must be a function with a name")
    return offered


def _message(deltas: list[Delta], *, is_unfinished: bool) -> dict[str, object]:
    read = message_of(deltas, is_unfinished=is_unfinished)
    reasoning = {"reasoning_content": read.reasoning} if read.reasoning else {}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in read.calls
    ]
    content = read.content or (None if calls else "")
    return {"role": "assistant", "content": content, **reasoning, **({"tool_calls": calls} if calls else {})}


def _delta(delta: Delta) -> dict[str, object]:
    match delta:
        case Content():
            return {"content": delta.text}
        case Thought():
            return {"reasoning_content": delta.text}
        case CallBegun():
            function = {"name": delta.name, "arguments": ""}
            return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
        case Arguments():
            return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
