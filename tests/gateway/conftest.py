"""What the gateway's tests share: the daemon's event loop, and one tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import uvloop

from executor.contract import TextModel
from tests.gateway.tiny_text import text_model


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], uvloop.Loop]]:
    """The loop that the daemon runs on: transports behave as they do there."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def text() -> TextModel:
    """The language of a small model."""
    return text_model()
