"""What is written down of the traffic for later replay: when, which tier, how long; no content."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TextIO

import structlog

from controller.errors import ConfigError
from controller.listener import Listener
from controller.request import Ended

HEADER = "arrival_s,tier,prompt_tokens,output_tokens,asked_tokens,outcome,client\n"


class Recorder(Listener):
    """Writes one line a request, at its end, into a CSV file that `headway simulate` replays.

    `arrival_s` is unix time. `asked_tokens` is the client's `max_tokens`, empty where it set none.
    `client` is a number that tells clients apart and not who they are; it is another one after
    every start. One that was turned away has a line without lengths and client. A file that has
    grown to `max_bytes` becomes `PATH.1`, that one `PATH.2` and so on, and the one beyond `keep` is
    deleted. Raises ConfigError where the file cannot be opened. A disk that fails later ends the
    record, not the service.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, keep: int, wall: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._wall = wall
        self._salt = os.urandom(16)
        self._file: TextIO | None = None
        self._size = 0
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(f"record.path: cannot write {path}: {error.strerror}") from error

    def ended(self, ended: Ended, now: float) -> None:
        request = ended.request
        asked = "" if request.expected_new_tokens is not None else str(request.max_new_tokens)
        self._write(
            f"{request.arrived_at:.6f},{request.tier},{len(request.prompt)},"
            f"{len(request.tokens)},{asked},{ended.outcome.value},{self._number(request.client)}\n"
        )

    def rejected(self, tier: str, requests: int, reason: str, now: float) -> None:
        self._write(f"{self._wall():.6f},{tier},,,,rejected,\n" * requests)

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _number(self, client: str) -> int:
        name = client.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(name, key=self._salt, digest_size=4).digest(), "big")

    def _write(self, lines: str) -> None:
        if self._file is None:
            return
        try:
            if self._size >= self._max_bytes:
                self._rotate()
            self._file.write(lines)
        except OSError as error:
            log = structlog.get_logger("headway.recorder")
            log.error("the record of the traffic ends", path=str(self._path), error=str(error))
            self.close()
            return
        self._size += len(lines)

    def _open(self) -> TextIO:
        # Line by line, so that a replay of a running daemon's record has whole lines only.
        file = self._path.open("a", buffering=1, encoding="utf-8")
        self._size = self._path.stat().st_size
        if not self._size:
            file.write(HEADER)
            self._size = len(HEADER)
        return file

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1) if number > 1 else self._path
            if older.exists():
                os.replace(older, self._numbered(number))
        self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
