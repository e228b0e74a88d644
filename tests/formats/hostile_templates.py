"""Templates that mean harm, each loaded and rendered in a process of its own with limits, as a program.

python -m tests.formats.hostile_templates NAME
"""

import resource
import sys

import msgspec

from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation

MAX_CPU_S, MAX_BYTES = 20, 2 << 30

SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"
DEEP = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}"
WHEN_ASKED = "{% if 'now' in messages[0].content %}"

SOURCES = {
    "loops": "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
    "an endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a doubling macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a long text": '{{ ("a" * 1000) * 100000 }}',
    "a longer text": '{{ "a" * 10000000000 }}',
    "a long list": "{{ range(1000000000) | list }}",
    "dots": "{{ x" + ".a" * 50_000 + " }}",
    "parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "brackets": "{{ " + "[" * 50_000 + "1" + "]" * 50_000 + " }}",
    "sums": "{{ 1" + "+1" * 50_000 + " }}",
    "filters": "{{ 1" + "|abs" * 50_000 + " }}",
    "nots": "{{ " + "not " * 50_000 + "1 }}",
    "minuses": "{{ " + "-" * 50_000 + "1 }}",
    "calls": "{{ x" + "()" * 50_000 + " }}",
    "items": "{{ x" + "[0]" * 50_000 + " }}",
    "ifs": "{% if x %}" * 20_000 + "{% endif %}" * 20_000,
    "branches": "{% if x %}" + "{% elif x %}" * 20_000 + "{% endif %}",
    "choices": "{{ 1" + " if x else 1" * 20_000 + " }}",
    "fors": "{% for a in [1] %}" * 10_000 + "{% endfor %}" * 10_000,
    "a long template": "x" * 300_000,
    "classes": "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}{{ cycler.__init__.__globals__ }}{{ strftime_now.__self__ }}",
    "an attribute filter": "{{ messages | map(attribute='__class__') | list }}",
    "a bound method": "{{ messages.append.__self__ }}{{ messages[0].keys.__self__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "a wide number": '{{ "%1000000000d" | format(1) }}',
    "an indent": "{{ 'a\\nb' | indent(1000000000) }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
    "JSON with an indent": "{{ {'a': 1} | tojson(indent=1000000000) }}",
    "a deep list": DEEP + "{{ ns.x }}",
    "deep JSON": DEEP + "{{ ns.x | tojson }}",
    "itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns | tojson }}",
    "a year": "{{ strftime_now('%1000000000Y') }}",
}

END_THE_PROCESS = frozenset({"an indent", "a deep list", "deep JSON", "itself"})
"""Templates that cannot be limited from outside the template engine: the memory of one filter, and the stack for nested
values."""


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))


def ends(source: str) -> str:
    """The end of the template, as a word or a line."""
    try:
        chat = ChatTemplates(source, None, names=ControlNames(["<s>"]), tokens={}, variables={})
    except BrokenTemplate as error:
        return f"broken: {error}"
    messages = msgspec.json.encode([{"role": "user", "content": "do it now"}]).decode()
    found = chat.read(Conversation(messages=messages))
    return f"refused: {found.message}" if isinstance(found, Violation) else f"rendered: {found.text[:300]}"


def main() -> None:
    limit()
    source = SOURCES[sys.argv[1]]
    for one in (source + SAYS, WHEN_ASKED + source + "{% endif %}" + SAYS):
        print(ends(one))  # noqa: T201


if __name__ == "__main__":
    main()
