"""One incarnation of an executor's process: its birth, its only connection, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec

from executor.contract import Begin, FromExecutor
from executor.wire import Connection, WireError

STDERR_FILENO = 2
# A process that has closed its connection is on its way out; its exit code is worth this wait.
EXIT_CODE_WAIT_S = 0.05


class Child:
    """A running worker and its connection; `closed` is done when the connection ends."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        connection: Connection[FromExecutor],
        *,
        closed: asyncio.Future[Exception | None],
    ) -> None:
        self._process = process
        self._connection = connection
        self._closed = closed
        self._exited = asyncio.Event()
        self._verdict: str | None = None
        loop = asyncio.get_running_loop()

        def wait() -> None:
            process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may have been closed meanwhile
                loop.call_soon_threadsafe(self._exited.set)

        # A thread waits on every system, and as a daemon it holds nobody up at the end.
        threading.Thread(target=wait, name=f"exit of {process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Write at once; dropped when the connection has ended."""
        self._connection.send(message)

    def kill(self, reason: str) -> None:
        """End it now, for a reason that becomes the answer of `ended` if it is the first."""
        self._verdict = self._verdict or reason
        self._connection.close()
        self._process.kill()

    async def ended(self) -> str:
        """Wait for the end of the connection; answers why, as `code: words`."""
        # Shielded: whoever waits may be cancelled, and the connection still tells its end.
        error = await asyncio.shield(self._closed)
        if self._verdict is not None:
            return self._verdict
        if isinstance(error, WireError):
            return f"garbled: {error}"
        if error is not None and not isinstance(error, OSError):
            return f"handler: {error!r}"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), EXIT_CODE_WAIT_S)
        code = self._process.returncode
        if code is None:
            self._process.kill()
            return "disconnected: the connection ended before the process did"
        if code < 0:
            return f"killed: by signal {-code} ({signal.strsignal(-code)})"
        return f"exited: with code {code}"

    async def reaped(self) -> None:
        """Wait until the process is gone, and with it what it held of a device's memory."""
        self.kill("killed: by the daemon")
        await self._exited.wait()


async def spawn(begin: Begin, on_message: Callable[[FromExecutor], None]) -> Child:
    """Start a worker and tell it what to be. Raises OSError."""
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[Exception | None] = loop.create_future()
    connection: Connection[FromExecutor] = Connection(
        FromExecutor, on_message=on_message, on_closed=closed.set_result
    )
    ours, theirs = socket.socketpair()
    with theirs:
        await loop.create_unix_connection(lambda: connection, sock=ours)
        try:
            process = _popen(theirs.fileno())
        except OSError:
            connection.close()
            raise
    connection.send(begin)
    return Child(process, connection, closed=closed)


def _popen(fd: int) -> subprocess.Popen[bytes]:
    """Start the program clean (never a fork of the daemon), with this descriptor and no other.

    It reads no terminal, and what it prints goes to the daemon's stderr.
    """
    # -P: a folder named `executor` where the daemon was started is not this package.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "executor.worker", "--fd", str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stdout=STDERR_FILENO,
    )
