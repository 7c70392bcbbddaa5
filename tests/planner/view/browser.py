"""Opens a page in a browser without a window, does something there and reads what became of it."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.children import ran

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the page is our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1000",
    "--dump-dom",
)
QUICKLY = "const all = (s) => [...document.querySelectorAll(s)]; const one = (s) => document.querySelector(s);"


class Body(HTMLParser):
    """The attributes of the body."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.attributes: dict[str, str | None] = {}
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self.attributes = dict(attrs)


def browse(page: str, folder: Path, script: str = "return null") -> Any:
    """What a script returns that runs when the page is ready; `all` and `one` find elements by selector."""
    assert BROWSER is not None
    save = f"document.body.dataset.answer = JSON.stringify((() => {{ {QUICKLY} {script} }})())"
    before, end = page.rsplit("</body>", 1)
    file = folder / "page.html"
    file.write_text(f"{before}<script>{save}</script></body>{end}", encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    done = ran(command, limit_s=120)
    attributes = Body(done.stdout).attributes
    assert "data-error" not in attributes, attributes["data-error"]
    assert "data-ready" in attributes
    return json.loads(attributes["data-answer"] or "")
