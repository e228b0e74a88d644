"""The page of routes, from the OpenAPI document that a worker serves."""

from typing import Any, Final

from tools.markdown import table
from tools.reference import openapi
from tools.reference.text import code, codes, page, sentence

_COLUMNS: Final = ("method", "path", "what it does", "token", "statuses")

_TITLES: Final[dict[str, str]] = {
    "state": "State",
    "jobs": "Jobs",
    "openai": "OpenAI, vLLM, llama-server and Anthropic",
    "life": "Shutdown",
}

Document = dict[str, Any]


def routes_page() -> str:
    document: Document = openapi.document()
    tags = {tag["name"]: tag["description"] for tag in document["tags"]}
    blocks = [f"## {_TITLES[name]}\n\n{sentence(text)}\n\n{_table(document, name)}" for name, text in tags.items()]
    return page("Routes", "routes", *blocks)


def _table(document: Document, tag: str) -> str:
    rows = [
        (
            code(method.upper()),
            code(path),
            sentence(operation["summary"]),
            "open" if operation.get("security") == [] else "needed",
            codes([*operation["responses"]]),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method != "parameters" and tag in operation["tags"]
    ]
    return table(_COLUMNS, rows)
