"""One Jinja template, compiled and rendered with limits on time, output and memory.

The template engine renders what transformers renders (utils/chat_template_utils.py): whitespace, `tojson`,
`raise_exception`, `strftime_now`, `{% generation %}`. A template comes from the author of the model file and is not
trusted: it gets plain values, fuel for a number of instructions, and a limit on its output. In the worst case it ends
this process, which is the engine's. One thread at a time.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import minijinja

MAX_SOURCE_CHARS = 1 << 18
"""The longest known template has 50,000 characters."""
_STACK_BYTES_PER_CHAR = 4096
"""The parser and the compiler recurse for each part of an expression, and 50,000 dots crash a process with a stack of
8 MiB. So a template is compiled on a stack that is large enough for its length; little of it is used."""
MAX_WORDS_CHARS = 300
_MAX_WIDTH = 1_000
"""The largest indent of JSON, and the largest width of a formatted value."""

_WIDTH = re.compile(r"\d+")
_LINE_END = re.compile(r"\r\n?")
_APPEND = re.compile(r"\{%([-+]?\s*)set\s+_\s*=\s*(\w+\.\w+)\.append\(([^{}%]*)\)(\s*[-+]?)%\}")
_POP = re.compile(r"\{%([-+]?\s*)set\s+(\w+)\s*=\s*(\w+\.\w+)\.pop\(0\)(\s*[-+]?)%\}")
"""A `pop` from a list, as Kimi's templates write it. The template engine's lists do not have this method."""
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


class BrokenTemplate(Exception):
    """The text is not a template, or one that the worker refuses; the message says why."""


class Unrendered(Exception):
    """A conversation cannot be rendered. The message says why and quotes nothing of the conversation."""


class Runaway(Unrendered):
    """The template did not end, wrote too much, or broke the engine."""


class _Raised(Exception):
    """The error that `raise_exception` raises, with its argument."""


class Sandbox:
    """A compiled template. Raises: BrokenTemplate."""

    def __init__(self, source: str, now: Callable[[], datetime]) -> None:
        """`now`: the clock of strftime_now."""
        if len(source) > MAX_SOURCE_CHARS:
            raise BrokenTemplate(f"it has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}")
        self._source = source
        self._now = now
        self._engine, self.variables = self._compile()

    def _compile(self) -> tuple[minijinja.Environment, frozenset[str]]:
        """The engine with the template, and the names of the variables that the template reads."""
        engine = minijinja.Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            debug=False,
            auto_escape_callback=lambda _: False,
            filters={"tojson": _to_json, "format": _format},
            tests={"iterable": _is_iterable, "number": _is_number, "float": _is_float},
            globals={"raise_exception": _raise, "strftime_now": self._strftime_now},
        )

        def compile_() -> frozenset[str]:
            engine.add_template("chat", _adapted(self._source))
            return frozenset(engine.undeclared_variables_in_template("chat"))

        try:
            return engine, _on_a_stack_for(len(self._source), compile_)
        except minijinja.TemplateError as error:
            raise BrokenTemplate(f"{error.kind} in line {error.line}") from None
        except BaseException as error:  # noqa: BLE001 - a panic of the engine is one
            raise BrokenTemplate(_panic(error)) from None

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)

    def render(self, values: Mapping[str, object], *, fuel: int, max_chars: int) -> str:
        """The text that the template makes from the values, which are JSON values. `fuel`: the number of instructions;
        one takes about 20 ns.

        Raises: Unrendered.
        """
        self._engine.fuel = fuel
        try:
            text = self._engine.render_template(
                "chat", **{name: _adapted_value(value) for name, value in values.items()}
            )
        except _Raised as error:
            words = _own_words(str(error), self._source)
            raise Unrendered(f"the chat template refuses the conversation: {words}".rstrip(": ")) from None
        except minijinja.TemplateError as error:
            if error.kind == "OutOfFuel":
                raise Runaway("the chat template takes too long for this conversation") from None
            raise Unrendered(
                f"the chat template fails on this conversation: {error.kind} in line {error.line}"
            ) from None
        except Exception as error:  # noqa: BLE001 - a template calls a value's method with wrong arguments
            raise Unrendered(f"the chat template fails on this conversation: {type(error).__name__}") from None
        except BaseException as error:  # noqa: BLE001 - a panic of the engine is one
            words = _panic(error)
            # The panic may have left a lock of the engine held.
            self._engine, _ = self._compile()
            raise Runaway(words) from None
        if len(text) > max_chars:
            raise Runaway(f"the chat template writes more than {max_chars} characters for this conversation")
        return text


def _on_a_stack_for(n_chars: int, compile_: Callable[[], frozenset[str]]) -> frozenset[str]:
    """The result of `compile_`, which runs on a thread with a large stack; its errors are raised."""
    before = threading.stack_size(_STACK_BYTES_PER_CHAR * n_chars // 2**20 * 2**20 + 8 * 2**20)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="template") as thread:
            return thread.submit(compile_).result()
    finally:
        threading.stack_size(before)


def _adapted(source: str) -> str:
    """The template in the engine's dialect: Jinja's line ends, lists in a namespace that grow and shrink, and no
    generation blocks, which only training needs."""
    source = _LINE_END.sub("\n", source)
    source = _APPEND.sub(r"{%\1set \2 = \2 + [\3]\4%}", source)
    source = _POP.sub(r"{%\1set \2 = \3[0]\4%}{%- set \3 = \3[1:] -%}", source)
    return _GENERATION.sub(lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", source)


class _Float:
    """A number that the engine would not print like Python: 1e-07 as 0.0000001, and 2.0 as 2 in JSON."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _adapted_value(value: object) -> object:
    if isinstance(value, float):
        return _Float(value) if value.is_integer() or "e" in repr(value) else value
    if isinstance(value, list):
        return [_adapted_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _adapted_value(item) for key, item in value.items()}
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | _Float)


def _is_float(value: object) -> bool:
    return isinstance(value, float | _Float)


def _is_iterable(value: object) -> bool:
    """True if Python can iterate over the value; the engine would accept None as an empty list."""
    return isinstance(value, Iterable)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001 - transformers' signature, which templates call
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001
) -> str:
    if indent is not None and indent > _MAX_WIDTH:
        raise ValueError(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_number_of
    )


def _format(form: str, *values: object) -> str:
    if any(int(width) > _MAX_WIDTH for width in _WIDTH.findall(form)):
        raise ValueError(form)
    return form % values


def _number_of(value: object) -> float:
    """The number of a _Float. Raises: TypeError for other types, like JSON."""
    if not isinstance(value, _Float):
        raise TypeError(type(value).__name__)
    return value.value


def _raise(message: object) -> None:
    raise _Raised(str(message))


def _own_words(message: str, source: str) -> str:
    """The longest beginning of the message that is also in the template; text of the conversation may follow it."""
    said = " ".join(message.split())[:MAX_WORDS_CHARS]
    written = " ".join(source.replace("\\n", " ").replace("\\", "").split())
    own = next((said[:n] for n in range(len(said), 0, -1) if said[:n] in written), "")
    return own.strip()


def _panic(error: BaseException) -> str:
    """The error text for a panic of the engine, which is not an Exception. Raises: any other error again."""
    if type(error).__name__ != "PanicException":
        raise error
    return "the template engine fails on it"
