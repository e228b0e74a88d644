"""The pictures of the page in the docs: `python -m tests.page_pictures`. They show the default model.

Needs Chromium; they look best where the fonts Inter and JetBrains Mono are installed.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.chromium import Browser, Tab, chromium
from tests.default_model import default_file
from tests.worker_process import WorkerProcess, serve_default

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
CODE, CAPITAL = "Write a Python function that adds two numbers.", "What is the capital of France?"
SKY = "Why is the sky blue? Explain in two short paragraphs."
SETTINGS = {"temperature": "0", "max_tokens": "160", "system": "You are a helpful assistant. Answer in Markdown."}
BESIDE = "The numbers are 1 2 3 4 5"
"""The jobs of other clients meanwhile, so that there is something to see."""

N_BESIDE = 2
ANSWERED = "document.querySelectorAll('.turn.assistant .usage:not(:empty)').length === n && send.checkVisibility()"
DOUBTFUL = "[...document.querySelectorAll('.token')].find(t => Math.abs(t.entry.logprob + 1) < 0.3).id = 'doubtful'"
"""A token with a probability of about a third."""


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        worker = stack.enter_context(serve_default(default_file(), "--ctx-size", "8192", "--threads", "2")).ready()
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = stack.enter_context(Browser(chromium(), profile))
        for scheme in ("light", "dark"):
            with browser.tab(scheme=scheme, width=1100, height=720) as tab:
                write(PICTURES / f"page-{scheme}.png", pictured(tab, worker, has_odds=scheme == "dark"))


def pictured(tab: Tab, worker: WorkerProcess, *, has_odds: bool) -> bytes:
    """A conversation with code in it, or with `has_odds` one whose tokens show their probabilities."""
    tab.open(f"{worker.url}/")
    tab.until("document.querySelector('#state').textContent === 'ready'")
    for name, value in SETTINGS.items():
        tab.fill(f"#settings [name={name}]", value)
    if has_odds:
        tab.click("#settings [name=probabilities]")
    with ExitStack() as jobs:
        for _ in range(N_BESIDE):
            jobs.enter_context(worker.stream(prompt=BESIDE, max_tokens=1500)).until("token")
        for n, question in enumerate((SKY,) if has_odds else (CODE, CAPITAL), start=1):
            tab.fill("#prompt", question)
            tab.press("Enter")
            tab.until(ANSWERED, n=n)
        tab.until("document.querySelector('#slots').textContent.startsWith('2 of')")
        tab.evaluate("panel.scrollTo(0, 0)")
        if has_odds:
            tab.evaluate(DOUBTFUL)
            tab.point("#doubtful")
            tab.until("odds.checkVisibility()")
        return tab.picture()


def write(path: Path, png: bytes) -> None:
    path.write_bytes(png)
    print(f"{path}: {len(png) / 1000:.0f} kB")  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
