"""By which name a client and this server speak of one HTTP request."""

from __future__ import annotations

import random
import re

from aiohttp import web

HEADER = "x-request-id"
_SANE = re.compile(r"[\x21-\x7e]{1,128}")
_KEY = web.RequestKey("request_id", str)


def request_id_of(http: web.Request) -> str:
    """The id that was given to it at the edge."""
    return http[_KEY]


def give_request_id(http: web.Request) -> str:
    """The client's own `x-request-id` if it is fit for a header and a log, else one of ours."""
    given = http.headers.get(HEADER)
    known = given if given is not None and _SANE.fullmatch(given) else f"req_{fresh_id()}"
    http[_KEY] = known
    return known


def fresh_id() -> str:
    """24 hexadecimal digits that no other request has. They are no secret."""
    return f"{random.getrandbits(96):024x}"
