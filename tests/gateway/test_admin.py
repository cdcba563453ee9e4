"""The operator's routes, and those that need no key."""

from __future__ import annotations

from typing import Any

import pytest

from controller.errors import InvalidRequest
from executor.contract import TextModel
from gateway.auth import ClientKey, Secret
from gateway.front import Access
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import Answer, Served, serving

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test


@pytest.fixture
def desk(text: TextModel) -> FakeDesk:
    return FakeDesk(text)


async def _get(served: Served, path: str, *, method: str = "GET", body: Any = None) -> Answer:
    connection = await served.send(path, body, method=method, headers={"Connection": "close"})
    answer = await connection.answer()
    await connection.leave()
    return answer


@pytest.mark.parametrize("path", ["/health", "/healthz"])
async def test_health_is_that_of_the_process(desk: FakeDesk, path: str) -> None:
    async with serving(desk) as served:
        well = await _get(served, path)
        desk.is_healthy = False
        ill = await _get(served, path)
    assert (well.status, well.json()) == (200, {"status": "ok"})
    assert (ill.status, ill.json()) == (503, {"status": "failing"})


async def test_readiness_says_why_not(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        ready = await _get(served, "/readyz")
        desk.is_ready = False
        waiting = await _get(served, "/readyz")
    assert (ready.status, ready.json()["ready"]) == (200, True)
    assert waiting.status == 503
    assert waiting.json() == {"ready": False, "executors": {"main": "loading"}}


async def test_metrics_are_in_prometheus_format_and_a_probe_costs_no_collection(
    desk: FakeDesk,
) -> None:
    async with serving(desk) as served:
        connection = await served.send("/metrics", method="HEAD")
        status, headers = await connection.head()
        await connection.leave()
        assert (status, desk.metrics_collected) == (200, 0)
        answer = await _get(served, "/metrics")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["content-type"] == headers["content-type"]
    assert answer.body == b"headway_up 1\n"


async def test_the_root_says_where_everything_is(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        answer = await _get(served, "/")
    assert answer.json()["routes"]["chat"] == "POST /v1/chat/completions"


async def test_state_and_decisions_are_the_desks(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        state = await _get(served, "/admin/state")
        three = await _get(served, "/admin/decisions?count=3")
        default = await _get(served, "/admin/decisions")
    assert state.json() == {"queued": 0, "running": 0}
    assert three.json() == {"decisions": [{"epoch": 9}, {"epoch": 8}, {"epoch": 7}]}
    assert len(default.json()["decisions"]) == 20


@pytest.mark.parametrize("count", ["0", "-1", "1001", "x", "1.5", "", "9" * 5000, "\u0663"])
async def test_a_bad_count_is_refused(desk: FakeDesk, count: str) -> None:
    from urllib.parse import quote

    async with serving(desk) as served:
        answer = await _get(served, f"/admin/decisions?count={quote(count)}")
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "count"


async def test_a_request_is_found_while_it_waits(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        connection = await served.ask()
        request = await desk.offered.get()
        found = await _get(served, f"/admin/requests/{request.id}")
        desk.finish(request.id)
        await connection.answer()
        await connection.leave()
        missing = await _get(served, "/admin/requests/chatcmpl-0")
    assert found.json() == {"id": request.id, "state": "queued"}
    assert missing.status == 404
    assert missing.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(("written", "seconds"), [("10m", 600.0), ("500ms", 0.5), (30, 30.0)])
async def test_limits_are_pinned_until_they_expire(
    desk: FakeDesk, written: Any, seconds: float
) -> None:
    async with serving(desk) as served:
        body = {"max_batch_size": 4, "expires": written}
        answer = await _get(served, "/admin/limits", method="PUT", body=body)
    assert desk.pinned == [({"max_batch_size": 4}, seconds)]
    assert answer.json() == {
        "pinned": True,
        "expires_s": seconds,
        "limits": {
            "max_batch_size": 4,
            "max_batch_tokens": 512,
            "wait_timeout_s": 0.01,
            "tiers": {},
        },
    }


async def test_limits_are_released(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        answer = await _get(served, "/admin/limits", method="PUT", body={"release": True})
    assert answer.status == 200
    assert (answer.json()["pinned"], answer.json()["limits"]["max_batch_size"]) == (False, 8)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_batch_size": 4}, "expires"),
        ({"max_batch_size": 4, "expires": "soon"}, "expires"),
        ({"max_batch_size": 4, "expires": 0}, "expires"),
        ({"max_batch_size": 4, "expires": True}, "expires"),
        ({"max_batch_size": 4, "expires": "8d"}, "expires"),
        ({"max_batch_size": 4, "expires": 1e400}, None),
        ({"expires": "10m"}, None),
        ({}, None),
        ({"release": "yes"}, "release"),
        ({"max_batch_size": 4, "expires": "10m", "group": 7}, "group"),
        ({"release": True, "max_batch_size": 4}, "release"),
        ([], None),
        (b"{", None),
    ],
)
async def test_bad_limits_change_nothing(desk: FakeDesk, body: Any, param: str | None) -> None:
    async with serving(desk) as served:
        answer = await _get(served, "/admin/limits", method="PUT", body=body)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param
    assert desk.pinned == []


async def test_limits_that_the_desk_refuses_are_a_400(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidRequest(
            "max_batch_size: 999 is above the envelope's 64", param="max_batch_size"
        )

    monkeypatch.setattr(desk, "pin", refuse)
    async with serving(desk) as served:
        body = {"max_batch_size": 999, "expires": 1}
        answer = await _get(served, "/admin/limits", method="PUT", body=body)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "max_batch_size"


async def test_a_client_key_does_not_open_admin_and_health_needs_none(desk: FakeDesk) -> None:
    access = Access(keys=(ClientKey("a", "paid", Secret(env="KEY")),))
    async with serving(desk, access=access, environ={"KEY": "sk-1"}) as served:
        connection = await served.send(
            "/admin/state", method="GET", headers={"Authorization": "Bearer sk-1"}
        )
        refused = await connection.answer()
        await connection.leave()
        models = await _get(served, "/v1/models")
        statuses = [
            (await _get(served, path)).status for path in ("/health", "/readyz", "/metrics")
        ]
    assert (refused.status, refused.json()["error"]["code"]) == (403, "forbidden")
    assert (models.status, models.headers["www-authenticate"]) == (401, "Bearer")
    assert statuses == [200, 200, 200]


async def test_a_policy_is_switched_and_rolled_back(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        body = {"type": "aimd", "parameters": {"growth": 0.1}}
        switched = await _get(served, "/admin/policy", method="PUT", body=body)
        bare = await _get(served, "/admin/policy", method="PUT", body={"type": "static"})
        back = await _get(served, "/admin/policy", method="PUT", body={"rollback": True})
    assert [switched.status, bare.status, back.status] == [200, 200, 200]
    assert desk.switched == [("aimd", {"growth": 0.1}), ("static", {}), "rollback"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "type"),
        ({"parameters": {}}, "type"),
        ({"type": 3}, "type"),
        ({"type": ""}, "type"),
        ({"type": "aimd", "parameters": [1]}, "parameters"),
        ({"type": "aimd", "params": {}}, "params"),
        ({"rollback": False}, "rollback"),
        ({"rollback": True, "type": "aimd"}, "rollback"),
        ([], None),
        (b"{", None),
    ],
)
async def test_a_bad_switch_changes_nothing_and_names_the_key(
    desk: FakeDesk, body: Any, param: str | None
) -> None:
    async with serving(desk) as served:
        answer = await _get(served, "/admin/policy", method="PUT", body=body)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param
    assert desk.switched == []
