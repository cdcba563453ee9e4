"""The one tree of errors: what may go wrong, its HTTP status, and the words for the public."""

from __future__ import annotations


class HeadwayError(Exception):
    """Any error that Headway raises on purpose. `str(error)` is fit for the public.

    `status` is the HTTP status, `type` and `code` go into the OpenAI error body, `param` names
    the offending parameter, `retry_after_s` says when a retry may succeed (None: no promise).
    `should_retry` False tells a client that a retry is pointless or harmful.
    """

    status = 500
    type = "server_error"
    code: str | None = "internal_error"
    should_retry: bool | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class ConfigError(HeadwayError):
    """A configuration that cannot be used; the message names the key's path and what would do.

    `count` is how many mistakes there are; of very many the message names only the first.
    """

    code = "invalid_config"

    def __init__(self, message: str, *, count: int = 1) -> None:
        super().__init__(message)
        self.count = count


class InvalidRequest(HeadwayError):
    """The request can never be served as it is."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None


class UnsupportedParameter(InvalidRequest):
    """A parameter that the executor cannot honour."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus output is longer than the model or the memory can ever hold."""

    code = "context_length_exceeded"


class EngineRefused(HeadwayError):
    """An engine behind HTTP does not take the request, and says why in its own words."""

    def __init__(
        self, message: str, *, status: int, type: str, code: str | None, param: str | None
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = type
        self.code = code


class Unauthorized(HeadwayError):
    """No key, or an unknown one."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(HeadwayError):
    """A known caller, but not allowed to do this."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class NotFound(HeadwayError):
    """No such path, request or model."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """A model that is not served here."""

    code = "model_not_found"


class MethodNotAllowed(HeadwayError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class PayloadTooLarge(HeadwayError):
    """The body is longer than the server accepts."""

    status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class CapacityError(HeadwayError):
    """Not now: the request is fine, but there is no room for it."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class QueueFull(CapacityError):
    """The tier's queue is at its bound of requests, tokens or bytes."""


class Infeasible(CapacityError):
    """The request could not begin before its deadline."""

    code = "infeasible"


class Shed(CapacityError):
    """Turned away by lot, because a higher tier misses its targets. An SDK that draws again at once
    would undo that and multiply the load."""

    code = "shed"
    should_retry = False


class Expired(CapacityError):
    """The request waited until its deadline and was removed from the queue."""

    code = "deadline_exceeded"


class DeadlineExceeded(HeadwayError):
    """The request ran, and its deadline came before its end."""

    status = 504
    code = "deadline_exceeded"
    should_retry = False


class Unavailable(HeadwayError):
    """No executor can take work now."""

    status = 503
    type = "service_unavailable_error"
    code = "unavailable"


class NotReady(Unavailable):
    """The executor has not been ready yet, or does not come back in time."""

    code = "not_ready"


class Draining(Unavailable):
    """The daemon is on its way down and takes nothing new."""

    code = "draining"


class ExecutorFailed(HeadwayError):
    """The request began and cannot be continued."""

    code = "executor_failed"
