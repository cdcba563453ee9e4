"""The command `headway capacity`: how many sequences of a model fit where, before one is served."""

from __future__ import annotations

import json as json_
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.complaint import fail

if TYPE_CHECKING:
    from executor.footprint import Model

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvDtype = Literal["auto", "float32", "bfloat16", "float16", "float8"]
Weights = Literal["full", "8bit", "4bit"]

# Memory in MiB, as the driver tells it.
DEVICES: Mapping[str, int] = MappingProxyType(
    {
        "T4": 15360,
        "V100-16GB": 16384,
        "V100-32GB": 32768,
        "A10": 23028,
        "L4": 23034,
        "RTX-3090": 24576,
        "RTX-4090": 24564,
        "A100-40GB": 40960,
        "L40S": 46068,
        "A100-80GB": 81920,
        "H100-80GB": 81559,
        "H200": 143771,
    }
)
_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is to run: `free` bytes of `size`, on each device."""

    name: str
    free: int
    size: int
    is_gpu: bool


def capacity(
    model: Annotated[str, typer.Argument(help="Folder of a model, or demo.")],
    *,
    device: Annotated[
        str,
        typer.Option(help=f"auto, cpu, cuda, cuda:1: what is free there; or {', '.join(DEVICES)}."),
    ] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="Plan for so much memory instead, e.g. 24GiB.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights.")] = "auto",
    kv_dtype: Annotated[KvDtype, typer.Option(help="Of the KV cache; auto: as dtype.")] = "auto",
    weights: Annotated[Weights, typer.Option(help="Bits of the linear layers.")] = "full",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices that share it.")] = 1,
    fraction: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Of the memory, this part is used.")
    ] = 0.9,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """How much memory a model takes, and how many sequences of what length fit beside it."""
    from executor.footprint import BYTES, Unreadable, read

    place = _place(device, memory)
    try:
        known = read(_folder(model))
    except Unreadable as error:
        fail(str(error))
    if known.is_packed and (dtype, weights) != ("auto", "full"):
        fail(f"{model}: its weights are stored in fewer bits already: leave out --weights, --dtype")
    if known.kv.kv_heads % tensor_parallel:
        fail(
            f"--tensor-parallel {tensor_parallel}: the {known.kv.kv_heads} KV heads of {model} "
            "cannot be shared equally"
        )
    if dtype == "auto":
        is_half = place.is_gpu or known.dtype == "bfloat16"
        dtype = "bfloat16" if is_half else "float32"
    if kv_dtype == "auto":
        kv_dtype = dtype
    weight_bytes = -(-known.weight_bytes(dtype, weights) // tensor_parallel)
    kv_bytes = int(place.free * fraction) - weight_bytes
    plan = {
        "model": known.name,
        "type": known.type,
        "parameters": known.weights,
        "dtype": dtype,
        "weights": weights,
        "tensor_parallel": tensor_parallel,
        "weight_bytes": weight_bytes,
        "kv_dtype": kv_dtype,
        "kv_bytes_per_token": known.kv.bytes_of(1, BYTES[kv_dtype], parts=tensor_parallel),
        "device": place.name,
        "memory_bytes": place.size,
        "free_bytes": place.free,
        "fraction": fraction,
        "kv_bytes": kv_bytes,
    }
    if kv_bytes <= 0:
        fail(
            f"{model}: the weights take {_size(weight_bytes)}, and {fraction:.0%} of what is free "
            f"on {place.name} is {_size(int(place.free * fraction))}: try --weights 4bit, "
            "--tensor-parallel, or another --device"
        )
    plan["fits"] = _fits(known, plan)
    typer.echo(json_.dumps(plan, indent=2) if json else _table(known, plan))


def _fits(model: Model, plan: Mapping[str, Any]) -> list[dict[str, int]]:
    """How many sequences fit of each length up to the model's own."""
    from executor.footprint import BYTES

    most = model.max_tokens or _LENGTHS[-1]
    lengths = sorted({length for length in _LENGTHS if length < most} | {most})
    number, parts = BYTES[plan["kv_dtype"]], plan["tensor_parallel"]
    return [
        {
            "tokens": length,
            "sequences": plan["kv_bytes"] // model.kv.bytes_of(length, number, parts=parts),
        }
        for length in lengths
    ]


def _table(model: Model, plan: Mapping[str, Any]) -> str:
    kv = model.kv
    bits = "" if plan["weights"] == "full" else f", linear layers in {plan['weights']}"
    stored = "as stored" if model.is_packed else f"in {plan['dtype']}{bits}"
    each = "" if plan["tensor_parallel"] == 1 else f" on each of {plan['tensor_parallel']} devices"
    layers = f"{kv.full_layers} layers" if kv.full_layers else ""
    if kv.sliding_layers:
        sliding = f"{kv.sliding_layers} layers of the last {kv.window} tokens only"
        layers = f"{layers} and {sliding}" if layers else sliding
    lines = [
        f"model    {plan['model']} ({plan['type']}), {plan['parameters'] / 1e6:,.1f} M weights",
        f"weights  {_size(plan['weight_bytes'])} {stored}{each}",
        f"KV       {_size(plan['kv_bytes_per_token'])} a token in {plan['kv_dtype']}{each}: keys "
        f"and values, {layers}, {kv.kv_heads} heads of {kv.head_dim}",
        f"memory   {_size(plan['free_bytes'])} free of {_size(plan['memory_bytes'])} "
        f"on {plan['device']}",
        f"for KV   {_size(plan['kv_bytes'])}: {plan['fraction']:.0%} of what is free, without the "
        "weights",
    ]
    if not kv.sliding_layers:
        tokens = plan["kv_bytes"] // plan["kv_bytes_per_token"]
        lines.append(
            f"         {tokens:,} tokens of all sequences together: num_blocks "
            f"{tokens // _BLOCK} of {_BLOCK} tokens"
        )
    lines += ["", " tokens each  sequences at once"]
    lines += [f"{row['tokens']:>12,}  {row['sequences']:>17,}" for row in plan["fits"]]
    return "\n".join(lines)


def _place(device: str, memory: str | None) -> Place:
    from controller.units import parse_size

    if memory is not None:
        if device != "auto":
            fail(f"--memory {memory}: --device {device} says how much there is; give one of them")
        try:
            size = parse_size(memory)
        except ValueError as error:
            fail(f"--memory {memory}: {error}")
        return Place(f"a device of {memory}", size, size, is_gpu=True)
    known = {name.lower(): name for name in DEVICES}
    if (name := known.get(device.lower())) is not None:
        size = DEVICES[name] * 2**20
        return Place(name, size, size, is_gpu=True)
    if device == "auto" or device.split(":")[0] == "cuda":
        place = _gpu("cuda" if device == "auto" else device)
        if place is not None or device != "auto":
            return place or fail(f"--device {device}: there is none that NVML can read")
    elif device != "cpu":
        fail(f"--device {device}: is not known; there are auto, cpu, cuda, {', '.join(DEVICES)}")
    import psutil

    found = psutil.virtual_memory()
    return Place("this machine's CPU", int(found.available), int(found.total), is_gpu=False)


def _gpu(device: str) -> Place | None:
    """What is free of a GPU now: others may have their part of it."""
    from metrics.gpu import GpuMeter

    meter = GpuMeter(device)
    sample = meter.sample()
    meter.close()
    if sample is None:
        return None
    free = sample.memory_size - sample.memory_used
    return Place(device, free, sample.memory_size, is_gpu=True)


def _folder(model: str) -> Path:
    from executor import demo_folder
    from executor.contract import DEMO_MODEL

    if model != DEMO_MODEL:
        return Path(model)
    folder = demo_folder.made()
    if folder is None:
        fail("demo: its model is not there yet; make it with `python -m executor.demo_model`")
    return folder


def _size(size: int) -> str:
    """Bytes in the unit that keeps the number short."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}[unit]
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} B"
