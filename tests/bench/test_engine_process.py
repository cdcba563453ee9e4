"""A server that is measured is waited for, ended with what it started, and can be had again."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from bench.engine_process import EngineError, Server, free_port
from bench.engine_table import ENGINES, Place

# A server with a child, as engines have that keep their model in a process of its own.
SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(tmp_path: Path, code: str = SERVER) -> Server:
    port = free_port()
    return Server([sys.executable, "-c", code, str(port)], port, log=tmp_path / "log")


def child_of(running: Server) -> psutil.Process:
    with urllib.request.urlopen(running.url, timeout=10) as response:
        return psutil.Process(int(response.read()))


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        child = child_of(running)
        assert child.is_running()
    assert not child.is_running()


def test_what_was_killed_can_be_started_again_at_its_address(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        first = child_of(running)
        running.kill()
        assert not first.is_running()
        running.start()
        assert child_of(running).pid != first.pid


def test_a_start_that_fails_says_what_the_server_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="ended with 3:\nno such model"):
        server(tmp_path, "print('no such model', flush=True); raise SystemExit(3)").start()


def test_a_server_that_is_never_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    silent = ["sh", "-c", "echo $$; exec sleep 60"]
    with pytest.raises(EngineError, match=r"not ready after 1 s:\n\d+$") as told:
        Server(silent, free_port(), log=tmp_path / "log", startup_s=1.0).start()
    assert not psutil.pid_exists(int(str(told.value).rpartition("\n")[2]))


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_listens_on_loopback_at_the_port_given(name: str) -> None:
    command = ENGINES[name].command(Place(Path("env/bin/python"), "MODEL", 4711, seats=8))
    assert "MODEL" in command
    assert command[command.index("--port") + 1] == "4711"
    assert "0.0.0.0" not in command


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_package_of_an_engine_is_pinned_by_name(name: str) -> None:
    engine = ENGINES[name]
    for package in (*engine.packages, *engine.alone):
        assert "==" in package
        assert "/" not in package
