"""From the command to the first answer, and what an operator reads when that is not to be."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import until
from tests.e2e.conftest import Start
from tests.e2e.daemon import ROOT, STEADY, Daemon, settings


async def seconds_until_ready(daemon: Daemon) -> float:
    """From the command to the first good answer of `/readyz`, less what other programs took."""
    async with daemon.listening().client() as client:
        await until(lambda: client.get("/readyz"), lambda answer: answer[0] == 200, "ready")
        wall_s = time.monotonic() - daemon.started
        worker: int = (await client.state())["executors"]["main"]["pid"]
    return wall_s - waited_for_a_core_s(daemon.process.pid) - waited_for_a_core_s(worker)


def waited_for_a_core_s(pid: int) -> float:
    """How long a process was ready to run and did not; 0 where the system does not say."""
    try:
        _, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except FileNotFoundError:
        return 0.0
    return int(waited_ns) / 1e9


async def test_the_simulated_daemon_is_ready_within_two_seconds(start: Start) -> None:
    taken: list[float] = []
    while len(taken) < 3 and min(taken, default=9.0) >= 2.0:
        taken.append(await seconds_until_ready(start(ROOT / "configs/simulated.yaml")))
    assert min(taken) < 2.0, taken


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_no_torch_is_in_the_daemon_nor_in_a_simulated_worker(start: Start) -> None:
    daemon = start(ROOT / "configs/simulated.yaml")
    async with daemon.listening().client() as client:
        state = await client.ready()
    for pid in (daemon.process.pid, state["executors"]["main"]["pid"]):
        mapped = {entry.path for entry in psutil.Process(pid).memory_maps()}
        assert any("msgspec" in path for path in mapped)
        assert [path for path in mapped if "torch" in path] == []


async def test_it_takes_as_many_descriptors_as_it_may(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        daemon = start(settings())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    daemon.listening()
    limits = psutil.Process(daemon.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    assert limits == (most, hard)


async def refused(daemon: Daemon) -> str:
    """What a daemon wrote that ended by itself, without success."""
    with pytest.raises(AssertionError, match="ended before it listened"):
        daemon.listening()
    assert await daemon.exit_code() == 1
    return daemon.log_text()


async def test_two_daemons_on_one_port_and_the_second_names_it(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = await refused(start(settings(), flags=("--port", str(port))))
    assert told == (
        f"headway: cannot listen on 127.0.0.1:{port} (server.host, server.port): "
        "Address already in use\n"
    )


async def test_a_host_that_nobody_knows_is_one_error(start: Start) -> None:
    keys = [{"name": "acme", "tier": "paid", "sha256": "0" * 64}]
    config = settings(auth={"keys": keys, "default_tier": "paid"})
    told = await refused(start(config, flags=("--host", "nobody.invalid")))
    assert told.startswith(
        "headway: cannot listen on nobody.invalid:0 (server.host, server.port): "
    )
    assert "name" in told.lower()
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "server:\n  prot: 1\n",
            "headway: 1 mistake in the configuration\n"
            "  mine.yaml:2: server.prot: unknown key; did you mean port?\n",
        ),
        (
            "auth: {admin_token_env: NO_SUCH_VARIABLE}\n",
            "headway: auth.admin_token.env: the environment variable NO_SUCH_VARIABLE is not set "
            "or empty; set it to the key\n",
        ),
    ],
)
async def test_a_bad_configuration_is_one_error_and_no_traceback(
    start: Start, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    written = await refused(start(file))
    assert written.replace(f"{tmp_path}/", "") == told


async def test_an_interrupt_while_the_model_loads_ends_it_at_once(start: Start) -> None:
    daemon = start(settings(executors=[STEADY | {"load": "10m"}]))
    async with daemon.listening().client() as client:
        await client.until(
            lambda state: state["executors"]["main"]["state"] == "loading", "loading"
        )
        assert await client.get("/readyz") == (
            503,
            {
                "ready": False,
                "reasons": ["no executor is ready (main: simulating a model)"],
                "notes": [],
                "warnings": [],
                "executors": {"main": {"state": "loading", "detail": "simulating a model"}},
            },
        )
        assert (await client.get("/healthz"))[0] == 200
        answer = await client.ask()
        assert (answer.status, answer.error["code"]) == (503, "not_ready")
        assert answer.headers["Retry-After"] == "1"
    asked = time.monotonic()
    daemon.signal(signal.SIGINT)
    assert await daemon.exit_code() == 0
    assert time.monotonic() - asked < 2.0
    assert [record for record in daemon.log() if record["level"] == "error"] == []


async def test_a_daemon_whose_only_executor_can_never_run_says_why_and_ends(
    start: Start, tmp_path: Path
) -> None:
    broken = "libcudart.so.13: cannot open shared object file"
    (tmp_path / "torch.py").write_text(f"raise ImportError({broken!r})")
    config = settings(executors=[{"kind": "continuous"}], limits={"max_batch_tokens": 1024})
    daemon = start(config, environ={"PYTHONPATH": str(tmp_path)}).listening()
    assert await daemon.exit_code() == 1
    assert daemon.log_text().splitlines()[-1] == (
        "headway: no executor can run (main: broken: executors of kind 'continuous' cannot be "
        f"imported: {broken}; does not come back)"
    )


async def test_logs_are_json_where_nobody_looks_and_lines_where_somebody_asks(
    start: Start,
) -> None:
    in_json = start(settings())
    in_lines = start(settings(log={"format": "console"}))
    for daemon in (in_json, in_lines):
        await seconds_until_ready(daemon)
        daemon.signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0
    told = ["listening", "loading", "executor ready", "draining", "stopped"]
    assert [record["event"] for record in in_json.log()] == told
    assert in_lines.log() == []
    lines = in_lines.log_text().splitlines()
    assert [line.split("] ")[1].split("  ")[0] for line in lines] == told
