from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from metrics.gpu import GpuMeter, GpuSample


class NvmlError(Exception):
    """What NVML raises, of whatever class."""


@dataclass
class FakeNvml:
    """NVML as `pynvml` offers it, for two devices; `broken` names the calls that raise."""

    broken: set[str] = field(default_factory=set)
    closed: bool = False
    indices: dict[str, int] = field(default_factory=lambda: {"GPU-aa": 0, "GPU-bb": 1})

    def _try(self, call: str) -> None:
        if call in self.broken:
            raise NvmlError(call)

    def nvmlInit(self) -> None:
        self._try("init")

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in (0, 1):
            raise NvmlError("not found")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self.indices[uuid]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        self._try("memory")
        return SimpleNamespace(used=10 + handle, total=80)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        self._try("utilization")
        return SimpleNamespace(gpu=40 + handle)


@pytest.fixture(autouse=True)
def all_devices_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine of the test says about its own devices is left out."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_device_says_how_busy_it_is_and_how_much_memory_is_taken() -> None:
    assert GpuMeter("cuda", library=FakeNvml()).sample() == GpuSample(0.4, 10, 80)


def test_the_number_of_a_device_is_among_those_that_are_visible() -> None:
    fake = FakeNvml()
    assert GpuMeter("cuda:1", library=fake).sample() == GpuSample(0.41, 11, 80)
    assert GpuMeter("cuda:0", visible="1", library=fake).sample() == GpuSample(0.41, 11, 80)
    assert GpuMeter("cuda:1", visible="GPU-bb, GPU-aa", library=fake).sample() == (
        GpuSample(0.4, 10, 80)
    )


def test_what_is_visible_is_what_this_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert GpuMeter("cuda", library=FakeNvml()).sample() == GpuSample(0.41, 11, 80)


def test_a_device_that_is_not_there_has_no_sample() -> None:
    assert GpuMeter("cuda:7", library=FakeNvml()).sample() is None
    assert GpuMeter("cuda:1", visible="0", library=FakeNvml()).sample() is None


def test_a_processor_has_no_sample_and_does_not_wake_the_driver() -> None:
    assert GpuMeter("cpu", library=FakeNvml(broken={"init"})).sample() is None


def test_no_driver_is_no_sample() -> None:
    assert GpuMeter("cuda", library=FakeNvml(broken={"init"})).sample() is None


def test_a_failure_mid_run_is_no_sample_until_it_is_over() -> None:
    fake = FakeNvml()
    meter = GpuMeter("cuda", library=fake)
    fake.broken.add("memory")
    assert meter.sample() is None
    fake.broken.clear()
    assert meter.sample() == GpuSample(0.4, 10, 80)


def test_a_slice_of_a_device_has_memory_and_no_utilisation() -> None:
    meter = GpuMeter("cuda", library=FakeNvml(broken={"utilization"}))
    assert meter.sample() == GpuSample(None, 10, 80)


def test_a_closed_meter_lets_the_driver_go_and_has_no_sample() -> None:
    fake = FakeNvml()
    meter = GpuMeter("cuda", library=fake)
    meter.close()
    assert (fake.closed, meter.sample()) == (True, None)
