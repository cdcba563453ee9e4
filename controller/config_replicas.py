"""What executors one entry of a configuration stands for, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator

from controller.config_executors import ExecutorConfig, UpstreamExecutor


def each_of(written: ExecutorConfig) -> Iterator[ExecutorConfig]:
    """The executors of one entry: itself, or NAME-0, NAME-1, ... where it stands for several."""
    devices: tuple[str, ...] = getattr(written, "devices", ())
    if isinstance(written, UpstreamExecutor):
        yield written
    elif devices:
        for number, device in enumerate(devices):
            named = {"name": f"{written.name}-{number}", "device": device, "devices": ()}
            yield written.model_copy(update=named)
    elif written.count > 1:
        for number in range(written.count):
            yield written.model_copy(update={"name": f"{written.name}-{number}", "count": 1})
    else:
        yield written
