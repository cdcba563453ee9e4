"""By which name a client and this server speak of one HTTP request."""

from __future__ import annotations

import re
import secrets

from aiohttp import web

HEADER = "x-request-id"
_SANE = re.compile(r"[\x21-\x7e]{1,128}")
_KEY = web.RequestKey("request_id", str)


def request_id_of(http: web.Request) -> str:
    """The client's own `x-request-id` if it is fit for a header and a log, else one of ours."""
    known = http.get(_KEY)
    if known is None:
        given = http.headers.get(HEADER, "")
        known = given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        http[_KEY] = known
    return known
