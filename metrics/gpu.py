"""How busy a GPU is and how much of its memory is taken, from NVML; nothing where there is none."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading. `utilization` (0..1) is the time with any kernel resident; None: not counted."""

    utilization: float | None
    memory_used: int
    memory_size: int


class GpuMeter:
    """Reads one NVIDIA device. Whatever NVML cannot say is None and never an exception.

    `device` is what torch calls it (`cuda`, `cuda:1`; anything else has no meter); `visible` is
    CUDA_VISIBLE_DEVICES (None: that of this process), by which torch's numbers are translated
    into NVML's. The two number devices alike where CUDA_DEVICE_ORDER is PCI_BUS_ID or all devices
    are of one model.
    `library` stands in for `pynvml`, which is loaded only where a device is asked for.
    """

    def __init__(self, device: str, *, visible: str | None = None, library: Any = None) -> None:
        self._library = library
        self._handle: Any = None
        if device.split(":")[0] != "cuda":
            return
        if visible is None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        # A missing package, driver, or device, or one that may not be read: NVML has a class of
        # error for each, and none of them concerns anybody who serves.
        try:
            self._library = library or importlib.import_module("pynvml")
            self._library.nvmlInit()
            self._handle = self._find(device, visible)
        except Exception:
            self._handle = None

    def sample(self) -> GpuSample | None:
        """Read the device now (about a millisecond); None where it cannot be read."""
        if self._handle is None:
            return None
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        except Exception:
            return None
        return GpuSample(self._utilization(), int(memory.used), int(memory.total))

    def close(self) -> None:
        """Let NVML go; samples are None from now on."""
        if self._handle is None:
            return
        self._handle = None
        try:
            self._library.nvmlShutdown()
        except Exception:
            return

    def _utilization(self) -> float | None:
        # A slice of a device (MIG) has memory of its own and no such counter.
        try:
            rates = self._library.nvmlDeviceGetUtilizationRates(self._handle)
        except Exception:
            return None
        return min(1.0, max(0.0, float(rates.gpu) / 100))

    def _find(self, device: str, visible: str) -> Any:
        _, _, number = device.partition(":")
        index = int(number or 0)
        if not visible:
            return self._library.nvmlDeviceGetHandleByIndex(index)
        name = visible.split(",")[index].strip()
        if name.isdigit():
            return self._library.nvmlDeviceGetHandleByIndex(int(name))
        return self._library.nvmlDeviceGetHandleByUUID(name)
