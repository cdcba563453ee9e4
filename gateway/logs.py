"""How the daemon logs: structured, to stderr, for people on a terminal and as JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up(level: str, style: Literal["auto", "console", "json"]) -> None:
    """Configure structlog for this process, and the standard library's loggers with it; once more
    changes both, of loggers that are in use too.

    Both write by one handler of the standard library: where stderr is a pipe that nobody reads
    any more, or a full disk, the line is lost and nothing is raised into whoever logs.
    """
    people = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: structlog.types.Processor = (
        # The prettier traceback prints local variables: prompts and keys.
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if people
        else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # A console renders tracebacks itself.
    traceback = [] if people else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[
            # By the standard library's level: that of a structlog logger is fixed at its first use.
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *traceback,
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(handlers=[handler], level=_LEVELS[level], force=True)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether a line is worth writing: garbage that a client sends is answered, and anybody could
    fill the log with it."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | RequestPayloadError)
