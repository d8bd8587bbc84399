"""The page that a browser gets at ``/``: a chat, and the engine as it works.

One answer with everything in it, made once from the files in ``playground/``: nothing comes from other hosts, and the
policy sent along lets nothing run but this one script and go nowhere but this server.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import Response

__all__ = ["Page", "wants_html"]


class Page:
    """The page's bytes and headers. Reads the files as it is made."""

    def __init__(self, package: str = "tidemill.serve", name: str = "playground") -> None:
        """``name``: of a folder in the package, and of the style and the script in it."""
        folder = files(package) / name
        style = (folder / f"{name}.css").read_text("utf-8")
        script = (folder / f"{name}.js").read_text("utf-8")
        html = (folder / "index.html").read_text("utf-8")
        self._body = html.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).encode()
        self._headers = {
            "content-security-policy": "; ".join(
                (
                    "default-src 'none'",
                    f"script-src '{_digest(script)}'",
                    f"style-src '{_digest(style)}'",
                    "connect-src 'self'",
                    "img-src data:",
                    "base-uri 'none'",
                    "form-action 'none'",
                    "frame-ancestors 'none'",
                )
            ),
            "content-type": "text/html; charset=utf-8",
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "vary": "Accept",
            "x-content-type-options": "nosniff",
        }

    def response(self) -> Response:
        """The page as an answer."""
        return Response(self._body, headers=self._headers)


def wants_html(accept: str) -> bool:
    """True if an Accept header names HTML, as those of browsers do; ``*/*`` does not."""
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind == "text/html":
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", parameter) for parameter in parameters)
    return False


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
