"""Tell somebody that a night is over: one POST of JSON to the URL in ``KPAD_BENCH_WEBHOOK``.

The URL is a secret: whoever has it may post. No message, row or log of this project holds it, and what goes
wrong is told without the words of the libraries, which repeat it.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

VARIABLE = "KPAD_BENCH_WEBHOOK"
#: All of it, name lookup and answer included.
TIMEOUT_S = 15.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the message, or the secret, elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never follow."""


def post(message: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> str | None:
    """Send a message where the environment says; None: sent, or nobody asked. Else why it was not."""
    url = os.environ.get(VARIABLE, "").strip()
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        return f"{VARIABLE}: not an http or https URL; nothing was sent"
    data = json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    found: list[str | None] = []
    # A server that sends a byte a second keeps a socket's own deadline away for ever.
    thread = threading.Thread(target=lambda: found.append(_send(url, data, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    why = found[0] if found else f"no answer in {timeout_s:g} s"
    return None if why is None else f"{VARIABLE}: {why}; the night itself is not affected"


def _send(url: str, data: bytes, timeout_s: float) -> str | None:
    try:
        request = urllib.request.Request(  # noqa: S310 http or https, as checked
            url, data, {"Content-Type": "application/json", "User-Agent": "kpad-bench"}
        )
        opener = urllib.request.build_opener(_NoRedirects)
        with opener.open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"answered {error.code}"
    except urllib.error.URLError as error:
        return f"not reached ({type(error.reason).__name__})"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"not sent ({type(error).__name__})"
