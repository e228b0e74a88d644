"""The formats in which models write: a conversation becomes a prompt, an answer content, reasoning and calls.

A row of formats.toml has the notation of a family of models. Code stands here only for forms of notation, and for what
a template shows that is of no known family. All of it is pure, except for the clock that templates may read. It knows
no model and no tokeniser.
"""
