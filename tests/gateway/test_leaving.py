"""Who leaves in the very moment of being answered is no error of the server's."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from controller.errors import Unavailable
from controller.request import Outcome
from executor.contract import TextModel
from gateway.contract import Desk
from gateway.preparing import Preparer
from gateway.siblings import Siblings
from gateway.streams import Channel
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import serving


@pytest.mark.parametrize("already", [0, 1])
async def test_a_client_that_leaves_as_the_next_event_goes_out_is_not_logged_as_an_error(
    text: TextModel, caplog: pytest.LogCaptureFixture, already: int
) -> None:
    desk = FakeDesk(text)
    caplog.set_level(logging.INFO)
    async with serving(desk, preparer=Preparer()) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        for _ in range(already):
            desk.say(request.id, [70])
            await connection.head()
        desk.say(request.id, [71])
        # The handler was woken for its headers (or is at its end): it writes to nobody.
        assert served.runner.server is not None
        for open_ in served.runner.server.connections:
            assert open_.transport is not None
            open_.transport.close()
        if already:
            desk.finish(request.id)
        else:
            await desk.ended.get()
        await connection.leave()
    assert [record.getMessage() for record in caplog.records] == []


async def test_an_end_between_a_disconnect_and_its_handler_is_told_to_nobody() -> None:
    class Nobody:
        def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
            raise AssertionError("there is nothing to cancel")

    siblings = Siblings(cast("Desk", Nobody()))
    for well in (True, False):
        channel = Channel(
            siblings, 1, farewell=lambda: b"", keep_alive_after_s=60.0, buffer_bytes=2**16
        )
        channel.write(b"data: x")
        # What the event loop does to what a cancelled handler waits for.
        channel.closed.cancel()
        if well:
            channel.finish(b"data: y")
        else:
            channel.fail(Unavailable("gone"))
        assert channel.closed.cancelled()
