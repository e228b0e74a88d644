"""`llorch-worker chat render` and `chat parse`: what the worker does with conversations and answers, line by line.

They read no weights; with --model, llama.cpp reads the file's vocabulary.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from worker.apis.chat.message import delta_json, message_shown
from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import read_conversation
from worker.commands.places import present, where
from worker.formats.read.parse import Reader, message_of
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.formats.tool_format import chat_format
from worker.models.facts.info import read_words
from worker.wire.chat_format import ChatFormat
from worker.wire.encoding import encode_json
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation

_MAX_CHARS = 1 << 24
"""The limit on a conversation's text."""
_TOKENS = ("bos_token", "eos_token", "pad_token")
"""The tokens whose names templates read."""

Members = dict[str, Any]


class RenderLine(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to render."""

    messages: Any
    template: str | None = None
    tools: list[Members] | None = None
    add_generation_prompt: bool | None = None
    kwargs: Members | None = None


class ParseLine(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to read: a text, pieces of a text, or tokens."""

    template: str | None = None
    tools: list[Members] | None = None
    prompt: str | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    chunks: list[str] | None = None


class LineError(Exception):
    """A line that has no answer; the message says why."""


@click.command("render")
@click.option("--model", metavar="REF", help="Use the template and the vocabulary of this model.")
@where
def render(model: str | None, models_dir: Path, catalog: Path | None) -> None:
    """Render conversations to prompts.

    Each line of stdin is a JSON object: messages, and optionally template, tools, add_generation_prompt and kwargs.
    The line of stdout that answers it has the prompt, or the error.
    """
    _answer_lines(RenderLine, Lines(model, models_dir, catalog).rendered)


@click.command("parse")
@click.option("--model", metavar="REF", help="Use the template and the vocabulary of this model.")
@where
def parse(model: str | None, models_dir: Path, catalog: Path | None) -> None:
    """Read answers: their content, reasoning and tool calls.

    Each line of stdin is a JSON object: text, chunks or token_ids, and optionally template, tools and prompt. The line
    of stdout that answers it has the message and its deltas, or the error. Token ids need --model.
    """
    _answer_lines(ParseLine, Lines(model, models_dir, catalog).parsed)


def _answer_lines(shape: Any, answer: Callable[[Any], Members]) -> None:
    for line in sys.stdin.buffer:
        try:
            sent = msgspec.json.decode(line, type=Members)
            found = answer(msgspec.convert(sent, shape))
            if ignored := sorted(sent.keys() - {*shape.__struct_fields__}) + found.pop("ignored", []):
                found["ignored"] = ignored
        except (LineError, msgspec.ValidationError, RecursionError) as error:
            found = {"error": str(error)}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = {"error": f"the line is not JSON: {error}"}
        sys.stdout.buffer.write(encode_json(found) + b"\n")
        sys.stdout.buffer.flush()


class Lines:
    """The answers to lines."""

    def __init__(self, reference: str | None, models_dir: Path, catalog: Path | None) -> None:
        """Raises: ModelNotFound, BadModelFile, ModelLoadFailed."""
        self._templates = lru_cache(16)(self._compiled)
        self._path = None if reference is None else present(reference, models_dir, catalog)
        if self._path is not None:
            from worker.llama.model import Model  # noqa: PLC0415 - this loads llama.cpp

            gaps, *self._sources = read_words(self._path)
            self._model = Model.load_vocabulary(self._path, gaps)
            self._tokens = self._model.template_tokens

    def rendered(self, line: RenderLine) -> Members:
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

    def parsed(self, line: ParseLine) -> Members:
        """Return the answer to a line of `chat parse`: the message in a text, and its deltas. Raises: LineError."""
        functions = [tool.get("function", tool) for tool in line.tools or []]
        if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
            raise LineError("each of tools must be a function with a name")
        tools = {each["name"]: each.get("parameters") or {} for each in functions}
        _, form = self._templates(line.template, ())
        is_reasoning = line.prompt is not None and form.opens_reasoning(line.prompt)
        reader = Reader(form, tools, new_id="call{:05}".format, is_reasoning=is_reasoning)
        deltas = [delta for piece in self._pieces(line, form) for delta in reader.push(piece)]
        deltas += reader.finish(is_stopped=True)
        fields = ("reasoning_content",)
        shown = msgspec.to_builtins(message_shown(message_of(deltas, is_unfinished=reader.is_unfinished), fields))
        del shown["refusal"]
        return {"message": shown, "deltas": [msgspec.json.decode(delta_json(delta, fields)) for delta in deltas]}

    def _pieces(self, line: ParseLine, form: ChatFormat) -> list[str]:
        """Return the text to read, in the pieces in which it was sent; of tokens up to the end of the answer. Control
        tokens have no text unless they are part of a marker. Raises: LineError.
        """
        if sum(value is not None for value in (line.text, line.chunks, line.token_ids)) != 1:
            raise LineError("send one of text, chunks and token_ids")
        if line.token_ids is None:
            return line.chunks or [line.text or ""]
        if self._path is None:
            raise LineError("token_ids need a vocabulary; start the command with --model REF")
        model = self._model
        for token in line.token_ids:
            if not 0 <= token < model.n_vocab:
                raise LineError(f"token id {token} is outside the vocabulary, whose ids are 0 to {model.n_vocab - 1}")
        hidden = {token for name, token in model.controls.items() if not any(name in marker for marker in form.markers)}
        answer = takewhile(lambda token: not model.is_end(token), map(TokenId, line.token_ids))
        return [model.detokenize(token for token in answer if token not in hidden).decode(errors="replace")]

    def _compiled(self, source: str | None, names: tuple[tuple[str, str], ...]) -> tuple[ChatTemplates, ChatFormat]:
        """The template and its format. `names`: the tokens that templates read, in the line. Raises: LineError."""
        for_tools, controls, ends, tokens = None, ControlNames(()), frozenset[str](), dict.fromkeys(_TOKENS, "")
        if self._path is not None:
            controls, ends, tokens = ControlNames(self._model.controls), self._model.end_names, self._tokens
            if source is None:
                source, for_tools = self._sources
        if source is None:
            why = (
                "or start the command with --model REF" if self._path is None else f"{self._path} has no chat template"
            )
            raise LineError(f"send a template; {why}")
        try:
            chat = ChatTemplates(source, for_tools, names=controls, tokens=tokens | dict(names), variables={})
        except BrokenTemplate as error:
            raise LineError(f"the chat template cannot be used: {error}") from None
        return chat, chat_format(chat.for_tools, ends)
