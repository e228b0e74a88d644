"""The choice of the chat template: that of --chat-template, else the model's own, or none and why.

Owns the choice and its refusals; the room worker/chat reads templates.
"""

import logging
from typing import cast

import msgspec

from worker.chat.marks import Json, Names
from worker.chat.sandbox import BrokenTemplate
from worker.chat.template import ChatTemplates
from worker.errors import ModelLoadFailed
from worker.llama.model import TOKEN_KINDS, Model
from worker.model.info import ModelInfo
from worker.wire.jobs import Violation
from worker.wire.load import Configure

log = logging.getLogger(__name__)
"""Its warnings go to the front, which logs them (process/main.py)."""


def check_given_template(config: Configure) -> None:
    """Refuse a file that is of no use before the weights are read. Raises: ModelLoadFailed."""
    if config.chat_template is None:
        return
    try:
        ChatTemplates(
            config.chat_template,
            None,
            names=Names(()),
            tokens={f"{kind}_token": "" for kind in TOKEN_KINDS},
            variables=_variables(config),
        )
    except BrokenTemplate as error:
        raise ModelLoadFailed(f"--chat-template: {error}; use another file, or remove the flag") from None


def chat_of(config: Configure, info: ModelInfo, model: Model) -> ChatTemplates | Violation:
    """The template of the file that the configuration names, else the model's own; or why there is none. A model that
    cannot be used for chat serves everything else, which is logged once.

    Raises: ModelLoadFailed for variables that no template accepts.
    """
    variables = _variables(config)
    default = config.chat_template or info.chat_template
    if default is None:
        return _no_chat("the model has no chat template")
    try:
        chat = ChatTemplates(
            default,
            None if config.chat_template else info.chat_template_for_tools,
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


def _variables(config: Configure) -> dict[str, Json]:
    return cast(dict[str, Json], msgspec.json.decode(config.chat_template_kwargs, type=dict[str, object]))


def _no_chat(why: str) -> Violation:
    return Violation("messages", "no_chat_template", f"{why}; start the worker with --chat-template FILE")
