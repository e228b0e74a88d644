"""The choice of the chat template: that of --chat-template, else the model's own, or none and why.

Owns the choice and its refusals; the room worker/chat reads templates.
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import cast

import msgspec

from worker.config.engine_settings import Configure
from worker.engine.channels import ControlTokens
from worker.engine.dividers import marks_among
from worker.errors import ModelLoadFailed
from worker.formats.render.escapes import Json, Names
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.llama.model import TOKEN_KINDS, Model
from worker.models.facts.info import ModelInfo
from worker.wire.chat_format import ChatFormat
from worker.wire.refusals import Violation

log = logging.getLogger(__name__)
"""Its warnings go to the front, which logs them (server/process/main.py)."""


def check_given_template(config: Configure) -> None:
    """Refuse a file that is of no use before the weights are read. Raises: ModelLoadFailed."""
    if config.template is None:
        return
    try:
        tokens = {f"{kind}_token": "" for kind in TOKEN_KINDS}
        ChatTemplates(config.template, None, names=Names(()), tokens=tokens, variables=_variables(config))
    except BrokenTemplate as error:
        raise ModelLoadFailed(f"--chat-template: {error}; use another file, or remove the flag") from None


def chat_of(config: Configure, info: ModelInfo, model: Model) -> ChatTemplates | Violation:
    """The template of the file that the configuration names, else the model's own; or why there is none. A model that
    cannot be used for chat serves everything else, which is logged once.

    Raises: ModelLoadFailed for variables that no template accepts.
    """
    variables = _variables(config)
    default = config.template or info.chat_template
    if default is None:
        return _no_chat("the model has no chat template")
    try:
        chat = ChatTemplates(
            default,
            None if config.template else info.chat_template_for_tools,
            names=Names(model.controls),
            tokens={f"{kind}_token": model.name_of(kind) or "" for kind in TOKEN_KINDS},
            variables=variables,
        )
    except BrokenTemplate as error:
        log.warning("the model's chat template cannot be used: %s", error)
        return _no_chat(f"the model's chat template cannot be used: {error}")
    if not variables.keys() <= chat.keys:
        raise ModelLoadFailed(f"--chat-template-kwargs: {chat.known_variables}")
    return chat


def marks_of(model: Model, form: ChatFormat) -> ControlTokens:
    """The tokens that divide the model's answers, and those of its calls."""
    calls = form.calls
    markers = [] if calls is None else [getattr(calls, name) for name in _MARKERS]
    pair = None if form.reasoning is None else (form.reasoning.begin.strip(), form.reasoning.end.strip())
    marks = marks_among(model.controls, model.words, pair, markers, enders_of(form, model.controls))
    if form.reasoning is None or marks.turns or (calls is not None and calls.form == "harmony"):
        return marks
    return replace(marks, text_markers=(form.reasoning.begin, form.reasoning.end), piece=model.piece)


def enders_of(form: ChatFormat, controls: Collection[str]) -> list[str]:
    """The markers with which a call ends the reasoning. Unless the format says so, only a control token does: the
    reasoning may speak of other markers."""
    calls, always = form.calls, form.reasoning is not None and form.reasoning.is_ended_by_call
    markers = [] if calls is None else [each for each in (calls.section_begin, calls.call_begin) if each]
    return [each for each in markers if always or each.strip().startswith(tuple(filter(None, controls)))]


_MARKERS = (
    *("section_begin", "section_end", "call_begin", "call_end", "between", "name_end", "id_begin", "id_end"),
    *("index_begin", "parameter_begin", "parameter_name_end", "parameter_end", "mark_end", "name_prefix"),
)
"""The members of CallFormat that are texts of an answer."""


def _variables(config: Configure) -> dict[str, Json]:
    return cast(dict[str, Json], msgspec.json.decode(config.chat_template_kwargs, type=dict[str, object]))


def _no_chat(why: str) -> Violation:
    return Violation("messages", "no_chat_template", f"{why}; start the worker with --chat-template FILE")
