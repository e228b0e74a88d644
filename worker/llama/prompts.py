"""Prompts of all kinds → tokens, and tokens → text.

Owns nothing but the way between the chat templates (worker/chat) and the vocabulary (model.py): control tokens come
from text that was given as raw input, or from a template, never from the words of a conversation. Runs on the intake
thread.
"""

import functools
from collections.abc import Sequence

from worker.engine.backend import Read
from worker.formats.render.template import ChatTemplates
from worker.llama.model import Model
from worker.models.facts.spelling import Unspellable
from worker.wire.jobs import Prompt, TokenId
from worker.wire.prompts import Conversation, Infill
from worker.wire.refusals import Violation

_REPOSITORY, _THIS_FILE = "myproject\n", "filename\n"
"""The names that llama-server gives to a repository and to the file with the gap. No request names them."""
_NO_SEPARATOR = "\n\n--- snippet ---\n\n"
"""The text between files if the vocabulary has no token for it, the same as in llama-server."""


class Prompts:
    """The reader of prompts, for `LoadedModel.prompts`."""

    def __init__(self, model: Model, chat: ChatTemplates | Violation) -> None:
        """`chat`: the templates, or why no conversation can be read."""
        self._model = model
        self._chat = chat

    def read(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Read | Violation:
        try:
            return self._read(prompt, add_special=add_special, parse_special=parse_special)
        except Unspellable as error:
            is_rendered = isinstance(prompt, Conversation)
            message = f"{error} of the rendered conversation" if is_rendered else str(error)
            return Violation("messages" if is_rendered else "prompt", "vocabulary", message)

    def _read(self, prompt: Prompt, *, add_special: bool, parse_special: bool) -> Read | Violation:
        if isinstance(prompt, Conversation):
            return self._read_conversation(prompt)
        if isinstance(prompt, Infill):
            return self._read_infill(prompt)
        if isinstance(prompt, str):
            return Read(self._model.tokenize(prompt, add_special=add_special, parse_special=parse_special), prompt)
        return self._outside(prompt) or Read(list(prompt), None)

    def _read_conversation(self, conversation: Conversation) -> Read | Violation:
        rendered = self._chat if isinstance(self._chat, Violation) else self._chat.read(conversation)
        if isinstance(rendered, Violation):
            return rendered
        if rendered.controls is None:
            return Read(self._model.tokenize(rendered.text), rendered.text)
        return Read(self._model.tokenize_around(rendered.text, rendered.controls), rendered.text)

    def _read_infill(self, gap: Infill) -> Read | Violation:
        """The tokens in llama-server's order: other files, then the text before the gap, after it, and the gap."""
        marks = self._model.infill_marks
        if marks is None:
            return Violation("prompt", "supported", "the model has no fill-in-the-middle tokens")
        text = functools.partial(self._model.tokenize, add_special=False, parse_special=False)
        before: list[TokenId] = []
        if gap.files is not None and marks.repository is not None:
            before += [marks.repository, *text(_REPOSITORY)]
        for name, content in gap.files or ():
            before += text(_NO_SEPARATOR) if marks.file is None else [marks.file, *text(f"{name}\n")]
            before += text(content)
        if gap.files is not None and marks.file is not None:
            before += [marks.file, *text(_THIS_FILE)]
        # BOS belongs to the text, as in llama-server, where other files stand before it.
        bos = self._model.tokenize("", parse_special=False)
        around = [marks.prefix, *text(gap.prefix), *text(gap.begun), marks.suffix, *text(gap.suffix), marks.middle]
        return Read([*before, *bos, *around], None)

    def detokenize(self, tokens: Sequence[TokenId]) -> str | Violation:
        return self._outside(tokens) or self._model.detokenize(tokens).decode(errors="replace")

    def _outside(self, tokens: Sequence[TokenId]) -> Violation | None:
        """Return what is wrong with ids that are not in the vocabulary."""
        n_vocab = self._model.n_vocab
        place = next((place for place, token in enumerate(tokens) if not 0 <= token < n_vocab), None)
        if place is None:
            return None
        message = f"the id at position {place} is outside the vocabulary, whose ids are 0 to {n_vocab - 1}"
        return Violation("tokens", f"vocabulary({n_vocab})", message)
