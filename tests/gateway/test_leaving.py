"""Who leaves in the very moment of being answered is no error of the server's."""

from __future__ import annotations

import logging

import pytest

from executor.contract import TextModel
from gateway.preparing import Preparer
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
