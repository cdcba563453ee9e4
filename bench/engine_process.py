"""How a server that is measured begins and ends: on loopback, and with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_POLL_S = 0.1
_END_S = 10.0
# One thread each, and nothing asked of a model hub.
_QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class EngineError(Exception):
    """An engine cannot be installed or started; the message says what it said last."""


def free_port() -> int:
    """A port that was free a moment ago, for servers that cannot say which one they chose."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_when_told() -> None:
    """Let SIGTERM end this process as Ctrl-C does: through the blocks that end what they began."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class Server:
    """One server, its command fixed: started, ended or killed, and started again at its address."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        log: Path,
        model: str = "",
        environment: Mapping[str, str] | None = None,
        ready_path: str = "/health",
        startup_s: float = 180.0,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.model = model
        """What it calls its model."""
        self._command = list(command)
        self._environment = {**os.environ, **_QUIET, **(environment or {})}
        self._log = log
        self._ready = self.url + ready_path
        self._startup_s = startup_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def start(self) -> None:
        """Start it and wait until it is ready. Raises EngineError, and then it is ended."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.end()
            raise

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        assert self._process is not None, "it was never started"
        return self._process.wait()

    def kill(self) -> None:
        """End it at once, as a crash would, and with it what it started."""
        self.end(patience_s=0.0)

    def end(self, *, patience_s: float = _END_S) -> None:
        """End it and what it started; what is still there after `patience_s` is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        started = []
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
        if patience_s > 0:
            process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, left = psutil.wait_procs(started, timeout=patience_s)
        for child in left:
            child.kill()
        psutil.wait_procs(left, timeout=_END_S)

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._startup_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise EngineError(f"it ended with {process.returncode}:\n{_tail(self._log)}")
            try:
                with urllib.request.urlopen(self._ready, timeout=5) as response:
                    if response.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(_POLL_S)
        raise EngineError(f"not ready after {self._startup_s:.0f} s:\n{_tail(self._log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
