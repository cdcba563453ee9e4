"""What a request body may say: the shape of chat and text completions, and unknown fields."""

from __future__ import annotations

import re
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import structlog
from aiohttp import web

from controller.errors import InvalidRequest, PayloadTooLarge

# A client may invent as many field names as it likes; the log and its memory are bounded.
_MAX_LOGGED_FIELDS = 1000

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct):
    """`continuous_usage_stats` is a vLLM extension: tolerated, the usage comes once, at the end."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What both kinds of completion have in common. None is the default everywhere."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: AtLeastOne | None = None
    max_tokens: AtLeastOne | None = None
    min_tokens: NotNegative | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[NotNegative] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    service_tier: str | None = None
    user: str | None = None


class ChatBody(Body, kw_only=True):
    """`POST /v1/chat/completions`. A message is whatever the chat template reads of it."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: NotNegative | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None


class CompletionBody(Body, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids, one or a list of them."""

    prompt: str | list[str | NotNegative | list[NotNegative]]
    logprobs: bool | NotNegative | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: AtLeastOne | None = None


async def read_body(http: web.Request, most: int) -> bytes:
    """The body of a request. Raises PayloadTooLarge past `most` bytes."""
    content = http.content
    content.set_read_chunk_size(most)
    body = bytearray()
    while chunk := await content.readany():
        body += chunk
        if len(body) > most:
            raise PayloadTooLarge(f"the body is longer than {most} bytes")
    return bytes(body)


B = TypeVar("B", bound=Body)


class BodyReader(Generic[B]):
    """Reads bodies of one kind, tolerates unknown fields and logs the name of each once."""

    def __init__(self, kind: type[B]) -> None:
        self._kind = kind
        self._known = frozenset(kind.__struct_fields__)
        self._logged: set[str] = set()
        self._log = structlog.get_logger("headway.gateway")

    def read(self, raw: bytes) -> B:
        """The body as a record. Raises InvalidRequest, naming the parameter that is wrong."""
        try:
            data = msgspec.json.decode(raw)
            if not isinstance(data, dict):
                raise InvalidRequest("the body should be a JSON object")
            body = msgspec.convert(data, self._kind)
        except msgspec.ValidationError as error:
            raise _explained(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
        unknown = data.keys() - self._known
        if unknown:
            self._log_once(unknown)
        return body

    def _log_once(self, names: set[str]) -> None:
        for name in sorted(names - self._logged):
            if len(self._logged) >= _MAX_LOGGED_FIELDS:
                return
            self._logged.add(name)
            self._log.info("unknown field", field=name[:64], kind=self._kind.__name__)


def _explained(error: msgspec.ValidationError) -> InvalidRequest:
    """The library's words with the parameter in front, as the caller wrote it."""
    text = str(error)
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        return InvalidRequest(f"{missing[1]}: this field is required", param=missing[1])
    found = re.fullmatch(r"(?P<words>.*) - at `\$\.?(?P<path>.*)`", text, re.DOTALL)
    if found is None:
        return InvalidRequest(text)
    words = found["words"].replace("`", "").replace(" | null", "")
    words = words[:1].lower() + words[1:]
    path = found["path"]
    # Numbers out of range are found before any field's name is known.
    if path.startswith("["):
        return InvalidRequest(f"the body is not valid JSON: {words}")
    return InvalidRequest(f"{path}: {words}", param=path)
