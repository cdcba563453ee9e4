"""The ceiling's peers answer its client, streamed and whole, with what they are measured by."""

from __future__ import annotations

import pytest
from aiohttp import web

from bench.ceiling_client import Load, drive
from bench.ceiling_daemon import daemon_app
from bench.ceiling_peers import App, bare_app, direct_app, gateway_app, text_model


@pytest.mark.parametrize(
    ("app", "stream"),
    [
        (gateway_app, True),
        (gateway_app, False),
        (daemon_app, True),
        (daemon_app, False),
        (bare_app, True),
        (direct_app, False),
    ],
)
async def test_every_connection_is_answered_until_the_time_is_over(app: App, stream: bool) -> None:
    runner = app(text_model(None), burst=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        seen = await drive(Load(port, stream=stream, tokens=4, connections=3, seconds=0.05))
    finally:
        await runner.cleanup()
    assert seen.answers >= 3
    assert len(seen.first_s) == len(seen.whole_s) == seen.answers
    # In order of their ends, which need not be that of their beginnings.
    pairs = zip(sorted(seen.first_s), sorted(seen.whole_s), strict=True)
    assert all(first <= whole for first, whole in pairs)


async def test_an_answer_that_is_no_200_ends_the_measurement() -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=429)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    load = Load(runner.addresses[0][1], stream=False, tokens=4, connections=1, seconds=5)
    try:
        with pytest.raises(RuntimeError, match="429"):
            await drive(load)
    finally:
        await runner.cleanup()
