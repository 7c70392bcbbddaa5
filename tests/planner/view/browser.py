"""Opens a page in a browser without a window, does something there and reads what became of it.

One browser serves all tests of a process. It takes commands of the Chrome DevTools Protocol through a pipe: JSON, with
a zero byte behind each message.
"""

import atexit
import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from fcntl import F_DUPFD, fcntl
from functools import cache
from pathlib import Path
from select import select
from typing import Any

from tests.children import running

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
)
QUICKLY = "const all = (s) => [...document.querySelectorAll(s)]; const one = (s) => document.querySelector(s);"
ANSWER_S = 120.0  # for an answer of the browser
LIFE_S = 3600.0  # of a browser whose tests do not end

Message = dict[str, Any]


class Browser:
    """A browser that runs."""

    def __init__(self, program: str) -> None:
        self._end = ExitStack()
        profile = self._end.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        (read, self._commands), (self._answers, write) = os.pipe(), os.pipe()
        theirs, ours = (fcntl(end, F_DUPFD, 10) for end in (read, write))  # the browser's are 3 and 4
        pipe = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{ours}', "bash"]
        command = [*pipe, program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._end.enter_context(running(command, LIFE_S, pass_fds=(theirs, ours), stdout=-3, stderr=-3))
        for end in (read, write, theirs, ours):
            os.close(end)
        self._count, self._said = 0, b""
        atexit.register(self._end.close)

    def opened(self, url: str, size: tuple[int, int] | None = None) -> Message:
        """The attributes of a page's body once the page is loaded, without a trace of other pages.

        ``size`` is that of the window in pixels.
        """
        context = self._ask("Target.createBrowserContext")["browserContextId"]
        target = self._ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable", session)
        if size is not None:
            look: Message = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
            self._ask("Emulation.setDeviceMetricsOverride", session, **look)
        self._ask("Page.navigate", session, url=url)
        while self._next().get("method") != "Page.loadEventFired":
            pass
        found = "Promise.resolve(window.planReady).catch(() => null).then(() => ({...document.body.dataset}))"
        dataset = self._ask("Runtime.evaluate", session, expression=found, awaitPromise=True, returnByValue=True)
        self._ask("Target.disposeBrowserContext", browserContextId=context)
        answer: Message = dataset["result"]["value"]
        return answer

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> Message:
        """The result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        assert "error" not in answer, answer
        result: Message = answer["result"]
        return result

    def _next(self) -> Message:
        """The next answer or event."""
        while b"\0" not in self._said:
            assert select([self._answers], [], [], ANSWER_S)[0], "the browser does not answer"
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser has ended"
            self._said += more
        message, _, self._said = self._said.partition(b"\0")
        found: Message = json.loads(message)
        return found


_browser = cache(Browser)


def browse(page: str, folder: Path, script: str = "return null", size: tuple[int, int] | None = None) -> Any:
    """What a script returns that runs when the page is ready; `all` and `one` find elements by selector."""
    assert BROWSER is not None
    answer = f"JSON.stringify((() => {{ {QUICKLY} {script} }})())"
    save = f"Promise.resolve(window.planReady).then(() => document.body.dataset.answer = {answer})"
    before, end = page.rsplit("</body>", 1)
    file = folder / "page.html"
    file.write_text(f"{before}<script>{save}</script></body>{end}", encoding="utf-8")
    attributes = _browser(BROWSER).opened(file.as_uri(), size)
    assert "error" not in attributes, attributes["error"]
    assert "ready" in attributes
    return json.loads(attributes["answer"] or "")
