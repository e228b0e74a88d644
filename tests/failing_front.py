"""A real worker, before the toy engine, of which one part fails: `python -m tests.failing_front PART --model …`.

PART is a key of FAILURES. It fails once the model is loaded; the others work.
"""

import sys
from collections.abc import Callable

from worker import serve
from worker.cli import parse
from worker.front.client import EngineClient
from worker.front.state import Front
from worker.web import server


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("on purpose")


async def _stop_serving(*_: object) -> bool:
    return True


async def _announce(*_: object, **__: object) -> None:
    _fail()


FAILURES: dict[str, Callable[[EngineClient], None]] = {
    "the web server": lambda _: setattr(server._Server, "on_tick", _stop_serving),
    "the engine's watchdog": lambda client: setattr(client._watchdog, "_clock", _fail),
    "the watch over the engine process": lambda _: setattr(EngineClient, "on_exit", _fail),
    "the ready callback": lambda _: setattr(serve, "announce", _announce),
}


def main() -> None:
    part, *arguments = sys.argv[1:]
    opened = Front.open

    def open_and_fail(self: Front, client: EngineClient) -> None:
        opened(self, client)
        FAILURES[part](client)

    Front.open = open_and_fail  # type: ignore[method-assign] # the moment at which all parts are at work
    command = (sys.executable, "-m", "tests.toy_engine")
    raise SystemExit(serve.run(parse(arguments), engine_command=command))


if __name__ == "__main__":
    main()
