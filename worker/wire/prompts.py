"""Prompts that are more than a text or tokens, as the engine gets them."""

import msgspec


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A conversation that the model's chat template turns into a prompt. The front has checked its shape; its meaning
    is not checked."""

    messages: str
    """A JSON array of objects, each with a `role`."""
    tools: str | None = None
    """A JSON array."""
    template_kwargs: str = "{}"
    """A JSON object with variables for the template besides the messages."""
    add_generation_prompt: bool = True
    """True if the text ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """True if the last message is the start of the answer. It excludes add_generation_prompt."""


class Infill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A text with a gap, for models with fill-in-the-middle tokens. Names of special tokens in it are letters."""

    prefix: str
    suffix: str
    begun: str = ""
    """The beginning of the text in the gap, which the prefix continues into."""
    files: tuple[tuple[str, str], ...] | None = None
    """(name, text) of further files, which go before the text in the form of a repository; None leaves out this form.
    """
