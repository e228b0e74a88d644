"""`llorch-worker chat render` and `chat parse`: what the worker does with conversations and answers, line by line."""

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click

from worker.apis.chat.message import delta_json, message_shown
from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import read_conversation
from worker.apis.core.fields import Members
from worker.commands.places import present, where
from worker.config.engine_settings import MAX_PROMPT_CHARS
from worker.formats.read.parse import Reader, message_of
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates, Rendered
from worker.formats.tool_format import chat_format
from worker.models.facts.info import read_words
from worker.wire.chat_format import ChatFormat
from worker.wire.encoding import encode_json
from worker.wire.jobs import TokenId


class RenderLine(msgspec.Struct, frozen=True, kw_only=True):
    """Render conversations to prompts: stdout has the prompt of each line of stdin, or the error.

    Each line of stdin is a JSON object: messages, and optionally template, tools, add_generation_prompt and kwargs.
    """

    messages: Any
    template: str | None = None
    tools: list[Members] | None = None
    add_generation_prompt: bool | None = None
    kwargs: Members | None = None


class ParseLine(msgspec.Struct, frozen=True, kw_only=True):
    """Read answers: stdout has the message in each line of stdin, and its deltas, or the error.

    Each line of stdin is a JSON object: text, chunks, or with --model token_ids; optionally template, tools and prompt.
    """

    template: str | None = None
    tools: list[Members] | None = None
    prompt: str | None = None
    text: str | None = None
    token_ids: list[TokenId] | None = None
    chunks: list[str] | None = None


class Lines:
    """The answers to lines. All raise ValidationError or BrokenTemplate if a line has none; it says why."""

    def __init__(self, reference: str | None, models_dir: Path, catalog: Path | None) -> None:
        """Raises: ModelNotFound, BadModelFile, ModelLoadFailed."""
        self._templates = lru_cache(16)(self._compiled)
        self._sources: list[str | None] = [None, None]
        self._controls, self._ends = ControlNames(()), frozenset[str]()
        self._tokens = {"bos_token": "", "eos_token": "", "pad_token": ""}
        self._path = None if reference is None else present(reference, models_dir, catalog)
        if self._path is not None:
            from worker.llama.model import Model  # noqa: PLC0415 - this loads llama.cpp

            gaps, *self._sources = read_words(self._path)
            self._model = model = Model.load_vocabulary(self._path, gaps)
            self._controls, self._ends = ControlNames(model.controls), model.end_names
            self._tokens = model.template_tokens

    def rendered(self, line: RenderLine) -> Members:
        """Return the prompt of a conversation."""
        kwargs = dict(line.kwargs or {})
        names = tuple((name, str(kwargs.pop(name))) for name in self._tokens if name in kwargs)
        chat, problems = self._templates(line.template, names)[0], Problems()
        asked = read_conversation(
            problems,
            line.messages,
            tools=line.tools or None,
            template_kwargs=kwargs,
            add_generation_prompt=line.add_generation_prompt,
            max_chars=MAX_PROMPT_CHARS,
        )
        found = chat.read(asked) if asked else None
        if not isinstance(found, Rendered):
            raise msgspec.ValidationError("; ".join(error.message for error in (*problems.found, found) if error))
        return {"prompt": found.text, "ignored": sorted(f"kwargs.{name}" for name in kwargs.keys() - chat.keys)}

    def parsed(self, line: ParseLine) -> Members:
        """Return the message in an answer, and its deltas."""
        functions = [tool.get("function", tool) for tool in line.tools or []]
        if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions):
            raise msgspec.ValidationError("each of tools must be a function with a name")
        tools = {each["name"]: each.get("parameters") or {} for each in functions}
        _, form = self._templates(line.template, ())
        if sum(value is not None for value in (line.text, line.chunks, line.token_ids)) != 1:
            raise msgspec.ValidationError("send one of text, chunks and token_ids")
        text = line.text or "" if line.token_ids is None else self._text_of(line.token_ids, form)
        reader = Reader(form, tools, new_id="call{:05}".format, is_reasoning=form.opens_reasoning(line.prompt or ""))
        deltas = [new for part in line.chunks or [text] for new in reader.push(part)] + reader.finish(is_stopped=True)
        fields = ("reasoning_content",)
        shown = msgspec.to_builtins(message_shown(message_of(deltas, is_unfinished=reader.is_unfinished), fields))
        del shown["refusal"]
        return {"message": shown, "deltas": [msgspec.json.decode(delta_json(delta, fields)) for delta in deltas]}

    def _text_of(self, tokens: list[TokenId], form: ChatFormat) -> str:
        """The text up to the end of the answer. Control tokens have none unless they are part of a marker."""
        if self._path is None:
            raise msgspec.ValidationError("token_ids need a vocabulary; start the command with --model REF")
        model, last = self._model, self._model.n_vocab - 1
        if outside := [token for token in tokens if not 0 <= token <= last]:
            raise msgspec.ValidationError(f"token id {outside[0]} is outside the vocabulary, whose ids are 0 to {last}")
        hidden = {token for name, token in model.controls.items() if not any(name in marker for marker in form.markers)}
        end = next((at for at, token in enumerate(tokens) if model.is_end(token)), None)
        return model.detokenize(token for token in tokens[:end] if token not in hidden).decode(errors="replace")

    def _compiled(self, source: str | None, names: tuple[tuple[str, str], ...]) -> tuple[ChatTemplates, ChatFormat]:
        default, for_tools = self._sources if source is None else (source, None)
        if default is None:
            raise msgspec.ValidationError(
                f"{self._path or 'the command without --model'} has no chat template; send one"
            )
        chat = ChatTemplates(default, for_tools, names=self._controls, tokens=self._tokens | dict(names), variables={})
        return chat, chat_format(chat.for_tools, self._ends)


def _command(shape: Any, answer: Callable[[Lines, Any], Members]) -> click.Command:
    @click.option("--model", metavar="REF", help="Use the template and the vocabulary of this model.")
    @where
    def answer_lines(model: str | None, models_dir: Path, catalog: Path | None) -> None:
        lines = Lines(model, models_dir, catalog)
        for line in sys.stdin.buffer:
            try:
                sent = msgspec.json.decode(line, type=Members)
                found = answer(lines, msgspec.convert(sent, shape))
                if ignored := sorted(sent.keys() - {*shape.__struct_fields__}) + found.pop("ignored", []):
                    found["ignored"] = ignored
            except BrokenTemplate as error:
                found = {"error": f"the chat template cannot be used: {error}"}
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                found = {"error": f"the line cannot be answered: {error}"}
            click.echo(encode_json(found))

    return click.command(help=shape.__doc__)(answer_lines)


render, parse = _command(RenderLine, Lines.rendered), _command(ParseLine, Lines.parsed)
