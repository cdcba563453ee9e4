"""The daemon as a process: started on any free port, asked over HTTP, ended by its pid."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.e2e.client import PATIENCE_S, Client

ROOT = Path(__file__).resolve().parents[2]
HEADWAY = str(Path(sys.executable).with_name("headway"))
_ADDRESS = re.compile(r"listens on (http://\S+)")

# An executor whose steps take 10 ms whatever they hold, restarted at once.
STEADY: dict[str, Any] = {
    "kind": "simulated",
    "model": "sim",
    "max_seqs": 64,
    "a": "10ms",
    "restart": {"first_delay": "50ms"},
}


def settings(**sections: Any) -> dict[str, Any]:
    """A small configuration; sections given replace those here."""
    return {
        "auth": {"default_tier": "paid"},
        "limits": {"max_batch_size": 16, "max_batch_tokens": 2048, "wait_timeout": "0s"},
        "control": {"policy": {"type": "static"}, "interval": "50ms"},
        "executors": [STEADY],
    } | sections


class Daemon:
    """`headway serve` on a file, in a process of its own."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any] | Path,
        *,
        environ: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        if isinstance(config, Path):
            path = config
        else:
            path = folder / "headway.yaml"
            path.write_text(yaml.safe_dump(dict(config)))
        self.log_file = folder / "stderr"
        self.started = time.monotonic()
        with self.log_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [HEADWAY, "serve", "-c", str(path), "--port", "0", *flags],
                cwd=folder,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self.address = ""

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def listening(self) -> Daemon:
        """Wait until it has said where it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _ADDRESS.search(line.decode()):
                self.address = found[1]
                return self
        raise AssertionError(f"it ended before it listened:\n{self.log_text()}")

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        return host, int(port)

    @asynccontextmanager
    async def client(self, *, token: str = "") -> AsyncIterator[Client]:
        """Somebody who asks, over as many connections as it takes."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.address, connector=connector) as session:
            yield Client(session, token=token)

    def signal(self, number: signal.Signals) -> None:
        """Send the daemon (and nobody else) a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for its end."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def log_text(self) -> str:
        """What it wrote to stderr so far."""
        return self.log_file.read_text()

    def log(self) -> list[dict[str, Any]]:
        """The records of its log, which is JSON where stderr is no terminal."""
        lines = self.log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]
