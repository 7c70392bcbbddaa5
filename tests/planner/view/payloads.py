"""The payload of a page, as the page's own program reads it."""

import base64
import json
import re
import zlib
from typing import Any

import quickjs

from planner.view.page import template


def embedded(page: str) -> dict[str, Any]:
    """The payload of a page."""
    match = re.search(r'<script id="payload" type="text/plain">([A-Za-z0-9+/=]*)</script>', page)
    assert match
    document: dict[str, Any] = read(match[1])
    return document


def read(text: str) -> Any:
    """What `unpack.js` makes of a packed document."""
    context = quickjs.Context()
    context.eval(template("unpack.js"))
    context.set("inflated", zlib.decompress(base64.b64decode(text)).decode())
    return json.loads(context.eval("JSON.stringify(unpacked(...JSON.parse(inflated)))"))
