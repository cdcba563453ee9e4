"""When the configuration is loaded again, what is said of it, and that nothing is half done."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from controller.config import Config
from controller.config_load import Source
from controller.errors import ConfigError
from gateway import reloading
from gateway.assembly import Parts, assemble
from gateway.in_force import Prepared
from gateway.reloading import FileWatch, Reloader
from policies.contract import Limits, Proposal, Signals
from tests.gateway.blocked import PATIENCE_S
from tests.gateway.serving import Answer, Served, listening

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test
Write = Callable[..., None]
BASE: dict[str, Any] = {
    "auth": {"default_tier": "paid"},
    "control": {"policy": {"type": "static"}},
    "executors": [{"kind": "simulated", "model": "sim"}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headway.yaml"


@pytest.fixture
def write(file: Path) -> Write:
    """Writes the file anew, with these sections in place of its own."""

    def written(**sections: Any) -> None:
        file.write_text(yaml.safe_dump(BASE | sections, sort_keys=False))

    return written


@pytest.fixture
async def parts(file: Path, write: Write) -> Parts:
    write()
    source = Source(file, {})
    parts = assemble(source.read().config, environ={"TOKEN": "secret"}, source=source)
    # Nothing that a test logs may set up the logs of the test's own process.
    parts.in_force._set_up_logs = lambda level, style: None
    return parts


def reloader(parts: Parts) -> Reloader:
    assert parts.reloader is not None
    return parts.reloader


async def post(parts: Parts, *, method: str = "POST") -> Answer:
    """Ask for a reload over HTTP; once, for the application is closed with it."""
    async with listening(parts.app) as served:
        return await send(served, method=method)


async def send(served: Served, *, method: str = "POST", **headers: str) -> Answer:
    connection = await served.send(
        "/-/reload", None, method=method, headers={"Connection": "close", **headers}
    )
    answer = await connection.answer()
    await connection.leave()
    return answer


def metric(parts: Parts, name: str) -> float:
    lines = parts.desk.metrics().decode().splitlines()
    (found,) = [line for line in lines if line.startswith(f"headway_config_last_reload_{name} ")]
    return float(found.split()[1])


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_the_answer_and_the_log_say_what_has_changed(
    parts: Parts, write: Write, method: str
) -> None:
    write(limits={"max_batch_size": 9}, server={"drain_timeout": "1s"})
    with capture_logs() as logs:
        answer = await post(parts, method=method)
    assert (answer.status, answer.json()) == (
        200,
        {
            "changed": [
                {"key": "server.drain_timeout", "old": "30s", "new": "1s"},
                {"key": "limits.max_batch_size", "old": 16, "new": 9},
            ],
            "notes": [],
        },
    )
    assert logs == [
        {
            "event": "configuration loaded",
            "log_level": "info",
            "why": "POST /-/reload",
            "changed": [
                "server.drain_timeout: 30s -> 1s",
                "limits.max_batch_size: 16 -> 9",
            ],
            "notes": None,
        }
    ]
    assert parts.ticker.loops["default"].limits.max_batch_size == 9
    assert metric(parts, "successful") == 1


async def test_a_file_with_no_change_is_a_success(parts: Parts) -> None:
    assert (await post(parts)).json() == {"changed": [], "notes": []}


async def test_it_is_the_admins(parts: Parts, write: Write) -> None:
    auth = {"admin_token_env": "TOKEN", "default_tier": "paid"}
    async with listening(parts.app) as served:
        write(auth=auth)
        assert (await send(served)).json()["changed"] == [
            {"key": "auth.admin_token_env", "old": None, "new": "TOKEN"}
        ]
        write(auth=auth, limits={"max_batch_size": 9})
        assert (await send(served)).status == 401
        assert (await send(served, Authorization="Bearer wrong")).status == 403
        assert parts.ticker.loops["default"].limits.max_batch_size == 16
        assert (await send(served, Authorization="Bearer secret")).status == 200
        assert parts.ticker.loops["default"].limits.max_batch_size == 9


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"limits": {"max_batch_sise": 9}, "tiers": {"paid": {"priority": "x"}}},
        [
            "headway.yaml:10: limits.max_batch_sise: unknown key; did you mean max_batch_size?",
            "headway.yaml:13: tiers.paid.priority: should be a valid integer; given 'x'",
        ],
    ),
    (
        {
            "limits": {"max_batch_size": 9},
            "server": {"port": 9},
            "record": {"path": "x.csv"},
            "executors": [{"kind": "simulated", "model": "other"}],
        },
        [
            "headway.yaml:12: server.port: 8080 -> 9 needs a restart: the address is bound at the "
            "start",
            "headway.yaml:8: executors.0.model: sim -> other needs a restart: workers are started "
            "with it",
            "headway.yaml:14: record.path: null -> x.csv needs a restart: the file is opened at "
            "the start",
        ],
    ),
    (
        {
            "limits": {"max_batch_size": 9},
            "auth": {
                "default_tier": "paid",
                "keys": [{"name": "n", "tier": "paid", "env": "NO_SUCH"}],
            },
        },
        [
            "headway.yaml:6: auth.keys.0.env: the environment variable NO_SUCH is not set or "
            "empty; set it to the key"
        ],
    ),
]


@pytest.mark.parametrize(("sections", "problems"), WRONG)
async def test_what_is_wrong_is_listed_with_file_line_and_key_and_changes_nothing(
    parts: Parts, write: Write, file: Path, sections: dict[str, Any], problems: list[str]
) -> None:
    before, succeeded_at = parts.in_force.config, metric(parts, "success_timestamp_seconds")
    write(**sections)
    with capture_logs() as logs:
        answer = await post(parts)
    error = answer.json()["error"]
    told = [problem.replace(f"{file.parent}/", "") for problem in error["problems"]]
    assert (answer.status, error["code"], told) == (400, "invalid_config", problems)
    assert error["message"].startswith("the configuration in force stays: ")
    assert [(one["event"], one["problems"]) for one in logs] == [
        ("configuration not loaded", error["problems"])
    ]
    assert parts.in_force.config is before
    assert parts.ticker.loops["default"].limits.max_batch_size == 16
    assert metric(parts, "successful") == 0
    assert metric(parts, "success_timestamp_seconds") == succeeded_at
    write(limits={"max_batch_size": 9})
    await reloader(parts).reload("again")
    assert metric(parts, "successful") == 1


class Foreign:
    """A policy of somebody's own."""

    @dataclass(frozen=True)
    class Parameters:
        pass

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "as it is")


class Leaving(Foreign):
    """It ends whoever builds it."""

    def __init__(self, parameters: Foreign.Parameters) -> None:
        raise SystemExit(4)


class Interrupting(Foreign):
    """It interrupts whoever builds it."""

    def __init__(self, parameters: Foreign.Parameters) -> None:
        raise KeyboardInterrupt


class Hanging(Foreign):
    """It is never built, until its gate is opened."""

    gate = threading.Event()
    threads: list[threading.Thread]

    def __init__(self, parameters: Foreign.Parameters) -> None:
        Hanging.threads.append(threading.current_thread())
        Hanging.gate.wait(PATIENCE_S)


def by(policy: str, **control: Any) -> dict[str, Any]:
    """The sections of a file that names this policy."""
    return {"control": control | {"policy": {"type": f"{__name__}:{policy}"}}}


@pytest.mark.parametrize(
    ("policy", "told"),
    [("Leaving", "raises SystemExit: 4"), ("Interrupting", "raises KeyboardInterrupt")],
)
async def test_a_policy_that_would_end_the_process_is_a_mistake_in_the_file(
    parts: Parts, write: Write, file: Path, policy: str, told: str
) -> None:
    before = parts.in_force.config
    write(**by(policy))
    answer = await post(parts)
    assert (answer.status, answer.json()["error"]["problems"]) == (
        400,
        [f"{file}:5: control.policy.type: {policy}({policy}.Parameters(...)) {told}"],
    )
    assert parts.in_force.config is before
    assert metric(parts, "successful") == 0


async def test_a_policy_that_is_never_built_is_given_up_and_holds_up_no_later_reload(
    parts: Parts, write: Write, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hanging, "threads", [], raising=False)
    before, loads = parts.in_force.config, reloader(parts)
    write(**by("Hanging"))
    monkeypatch.setattr(loads, "_build_timeout_s", 0.0)
    with pytest.raises(ConfigError) as caught:
        await loads.reload("by a test")
    assert str(caught.value) == (
        f"{file}: took longer than 0 s to be read, and its policies to be imported and built"
    )
    assert parts.in_force.config is before
    assert metric(parts, "successful") == 0
    monkeypatch.setattr(loads, "_build_timeout_s", PATIENCE_S)
    write(limits={"max_batch_size": 9})
    await loads.reload("again")
    assert parts.ticker.loops["default"].limits.max_batch_size == 9
    Hanging.gate.set()
    # A process does not wait for such a thread at its end.
    assert [thread.daemon for thread in Hanging.threads] == [True] * len(Hanging.threads)


async def test_a_pipe_in_place_of_the_file_is_refused(parts: Parts, file: Path) -> None:
    pipe = file.with_suffix(".pipe")
    os.mkfifo(pipe)
    os.replace(pipe, file)
    with pytest.raises(ConfigError, match="should be a regular file"):
        await reloader(parts).reload("by a test")


async def test_streams_go_on_while_it_is_read_and_built(
    parts: Parts, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies may be anybody's code, and take their time."""
    write(limits={"max_batch_size": 9})
    turned, prepare = threading.Event(), parts.in_force.prepare

    def slow(new: Config) -> Prepared:
        assert turned.wait(10.0)
        return prepare(new)

    monkeypatch.setattr(parts.in_force, "prepare", slow)
    loading = asyncio.create_task(reloader(parts).reload("by a test"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert parts.ticker.loops["default"].limits.max_batch_size == 16
    turned.set()
    await loading
    assert parts.ticker.loops["default"].limits.max_batch_size == 9


async def test_reloads_that_come_together_are_done_one_after_the_other(
    parts: Parts, write: Write
) -> None:
    write(limits={"max_batch_size": 9})
    both = await asyncio.gather(reloader(parts).reload("a"), reloader(parts).reload("b"))
    assert sorted(len(one.changes) for one in both) == [0, 1]


async def test_a_hang_up_loads_it_soon_and_a_bad_file_is_no_end_of_that(
    parts: Parts, write: Write
) -> None:
    loaded: list[str] = []
    reload, seen = reloader(parts).reload, asyncio.Event()

    async def told(why: str) -> Any:
        try:
            return await reload(why)
        finally:
            loaded.append(why)
            seen.set()

    reloader(parts).reload = told  # type: ignore[method-assign]  # to see when it is done
    watching = asyncio.create_task(reloader(parts).watch())
    for sections, size in (({"limits": 7}, 16), ({"limits": {"max_batch_size": 9}}, 9)):
        write(**sections)
        seen.clear()
        reloader(parts).ask()
        await seen.wait()
        assert parts.ticker.loops["default"].limits.max_batch_size == size
    watching.cancel()
    await asyncio.wait({watching})
    assert loaded == ["SIGHUP", "SIGHUP"]


async def test_a_file_that_changes_is_loaded_where_that_is_wanted(
    file: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "LOOK_S", 0.005)
    write(server={"watch_config": True})
    source = Source(file, {})
    parts = assemble(source.read().config, environ={}, source=source)
    changed = asyncio.Event()
    parts.in_force._set_up_logs = lambda level, style: changed.set()
    watching = asyncio.create_task(reloader(parts).watch())
    write(server={"watch_config": True}, log={"level": "error"})
    await changed.wait()
    assert parts.in_force.config.log.level == "error"
    watching.cancel()
    await asyncio.wait({watching})


class TestTheWatch:
    """Two looks after a change: an editor may still be writing at the first."""

    def looks(self, watch: FileWatch) -> list[bool]:
        return [watch.has_changed() for _ in range(3)]

    def test_a_new_content_is_seen_once_and_when_it_is_the_same_at_two_looks(
        self, file: Path, write: Write
    ) -> None:
        write()
        watch = FileWatch(Source(file, {}))
        assert self.looks(watch) == [False, False, False]
        write(log={"level": "debug"})
        assert self.looks(watch) == [False, True, False]
        write(log={"level": "error"})
        assert not watch.has_changed()
        write(log={"level": "warning"}, server={"port": 1})
        assert self.looks(watch) == [False, True, False]

    def test_the_same_content_again_is_no_change(self, file: Path, write: Write) -> None:
        write()
        watch = FileWatch(Source(file, {}))
        os.utime(file, ns=(1, 1))
        assert self.looks(watch) == [False, False, False]

    def test_a_file_put_in_its_place_and_a_link_that_is_turned_are_seen(
        self, tmp_path: Path, file: Path, write: Write
    ) -> None:
        """As editors save, and as Kubernetes updates a ConfigMap."""
        for name, size in (("one", 3), ("two", 4)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "headway.yaml").write_text(f"limits: {{max_batch_size: {size}}}\n")
        (tmp_path / "data").symlink_to("one")
        file.symlink_to("data/headway.yaml")
        watch = FileWatch(Source(file, {}))
        (tmp_path / "new").symlink_to("two")
        os.replace(tmp_path / "new", tmp_path / "data")
        assert self.looks(watch) == [False, True, False]
        (tmp_path / "saved").write_text("limits: {max_batch_size: 5}\n")
        os.replace(tmp_path / "saved", file)
        assert self.looks(watch) == [False, True, False]

    def test_a_file_that_is_gone_is_waited_for(self, file: Path, write: Write) -> None:
        write()
        watch = FileWatch(Source(file, {}))
        file.unlink()
        assert self.looks(watch) == [False, False, False]
        write(log={"level": "debug"})
        assert self.looks(watch) == [False, True, False]

    def test_what_was_loaded_otherwise_is_known(self, file: Path, write: Write) -> None:
        write()
        watch = FileWatch(Source(file, {}))
        write(log={"level": "debug"})
        watch.note()
        assert self.looks(watch) == [False, False, False]

    def test_without_a_file_nothing_changes(self) -> None:
        assert self.looks(FileWatch(Source(None, {}))) == [False, False, False]


async def test_without_a_file_flags_and_variables_are_what_there_is() -> None:
    source = Source(None, {}, {"executors": '[{"kind": "simulated"}]'})
    parts = assemble(source.read().config, environ={}, source=source)
    done = await reloader(parts).reload("for nothing")
    assert done.changes == ()


async def test_a_failure_that_nobody_expected_is_no_success(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Source) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Source, "read", fail)
    with pytest.raises(ZeroDivisionError):
        await reloader(parts).reload("by a test")
    assert metric(parts, "successful") == 0
