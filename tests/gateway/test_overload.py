"""With every queue full the daemon still says that it is well, and turns away before it works."""

from __future__ import annotations

import pytest

from gateway.text import ByteLanguage
from tests.gateway.desk_rig import Heard, Rig
from tests.gateway.serving import listening

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test

TIERS = {
    "paid": {"priority": 1, "service_tier": "priority", "max_queue_requests": 1},
    "free": {"priority": 0, "service_tier": "default", "max_queue_requests": 1},
}
ONE_SEAT = {"max_batch_size": 1, "max_batch_tokens": 64, "wait_timeout": "0s"}


@pytest.fixture
async def full() -> Rig:
    """A daemon with one seat that is taken and queues of one that are full, at 100 s."""
    rig = Rig(tiers=TIERS, limits=ONE_SEAT)
    rig.parts.ticker.tick()
    await rig.ready()
    for name, tier in (("a", "paid"), ("b", "paid"), ("c", "free")):
        await rig.offer(name, Heard(), tier=tier)
    return rig


async def test_health_readiness_and_metrics_are_never_shed(full: Rig) -> None:
    async with listening(full.parts.app) as served:
        connection = await served.ask(service_tier="default")
        assert (await connection.head())[0] == 429
        await connection.leave()
        for path in ("/health", "/healthz", "/readyz", "/metrics", "/admin/state", "/v1/models"):
            connection = await served.send(path, method="GET")
            assert ((await connection.head())[0], path) == (200, path)
            await connection.leave()
    assert full.outcomes() == {"rejected": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_turned_away_costs_no_tokenising_and_is_told_when_to_come_back(
    full: Rig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    worked: list[str] = []
    monkeypatch.setattr(ByteLanguage, "render", lambda *_: worked.append("render"))
    monkeypatch.setattr(ByteLanguage, "encode", lambda *_, **__: worked.append("encode"))
    async with listening(full.parts.app) as served:
        connection = await served.ask(service_tier="default", stream=stream)
        answer = await connection.answer()
        await connection.leave()
    assert (answer.status, worked) == (429, [])
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answer.headers["retry-after"]) >= 1
    assert int(answer.headers["retry-after-ms"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_who_makes_room_for_a_higher_tier_gets_a_real_429(stream: bool) -> None:
    rig = Rig(tiers=TIERS, limits=ONE_SEAT)
    await rig.ready()
    async with listening(rig.parts.app) as served:
        await rig.offer("a", Heard(), tier="paid")
        await rig.offer("b", Heard(), tier="paid")
        free = await served.ask(service_tier="default", stream=stream)
        await rig.until(lambda: rig.batcher.queued() == 2)
        paid = await served.ask(service_tier="priority", max_tokens=5)
        answer = await free.answer()
        await rig.until(lambda: len(rig.batcher.queues["paid"]) == 2)
        await free.leave()
        await paid.leave()
    assert (answer.status, answer.headers["content-type"]) == (429, "application/json")
    assert answer.json()["error"]["message"] == (
        "the request made room for others of a higher tier"
    )
    assert answer.headers["retry-after"] == "1"
    assert rig.outcomes()["rejected"] == 1
