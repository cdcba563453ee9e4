"""How a child ended is told in words, also when it does something that no worker does."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from executor.child import Child
from executor.contract import FromExecutor
from executor.wire import Connection


async def adopt(program: str) -> Child:
    """A child that runs this program, in which FD is its end of the connection."""
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[Exception | None] = loop.create_future()
    connection: Connection[FromExecutor] = Connection(
        FromExecutor, on_message=lambda message: None, on_closed=closed.set_result
    )
    ours, theirs = socket.socketpair()
    with theirs:
        await loop.create_unix_connection(lambda: connection, sock=ours)
        process = run(program, theirs.fileno())
    return Child(process, connection, closed=closed)


def run(program: str, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program.replace("FD", str(fd))], pass_fds=[fd])


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "import os, time; os.close(FD); time.sleep(600)",
            "disconnected: the connection ended before the process did",
        ),
        (
            "import os, time; os.write(FD, bytes([0, 0, 0, 1, 0xC1])); time.sleep(600)",
            "garbled: a record could not be read: MessagePack data is malformed: "
            "invalid opcode '\\xc1' (byte 0)",
        ),
        (
            "import os, time; os.write(FD, bytes([255, 0, 0, 0])); time.sleep(600)",
            "garbled: a frame of 4278190080 bytes was announced, at most 268435456 are allowed",
        ),
        ("import sys; sys.exit(3)", "exited: with code 3"),
        ("import os; os.abort()", "killed: by signal 6 (Aborted)"),
    ],
)
async def test_the_end_is_told_in_words_and_no_process_is_left(program: str, reason: str) -> None:
    child = await adopt(program)
    assert await child.ended() == reason
    await child.reaped()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_the_first_reason_for_a_kill_is_the_one_that_is_told() -> None:
    child = await adopt("import time; time.sleep(600)")
    child.kill("stalled: once")
    child.kill("stalled: twice")
    assert await child.ended() == "stalled: once"
    await child.reaped()


async def test_whoever_waits_for_the_end_may_give_up_before_it() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    child = await adopt("import time; time.sleep(600)")
    waiting = asyncio.create_task(child.ended())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await child.reaped()
    assert await child.ended() == "killed: by the daemon"
    assert told == []
