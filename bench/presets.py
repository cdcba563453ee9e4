"""Executors by name: published measurements of real hardware, and YAML files of one's own.

Each name stands for three models. E1 runs a batch to completion, E2 batches continuously and
prefills first, E3 batches continuously and prefills in chunks beside the decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import yaml
from pydantic import ValidationError

from controller.config_executors import SimulatedExecutor
from executor.contract import SimulatedSettings


class UnknownExecutor(ValueError):
    """There is no such executor; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Milliseconds of a step, as they were published, and tokens of KV.

    Decode: `a + b*context + c*n`, from the knee on with `c_above`. Prefill adds `d*tokens +
    e*squares`.
    """

    a: float
    b: float
    c: float
    c_above: float
    d: float
    e: float
    kv_tokens: int
    source: str


_DISTSERVE = "DistServe, A100 80 GB (LLMServe/DistServe at 82831f16, Apache-2.0)"
# A step here has one intercept and one slope in context, those of decoding; the profile has others
# for a step of nothing but prefill (1 to 5 ms apart) and for more than 95 rows (within 7 %).
# KV: of OPT-13B on one card as DistServe has it; of the others reckoned, as what 95 % of the cards'
# memory holds beside the weights in half precision.
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "opt-13b": Profile(23.475, 5.929e-4, 0.06073, 0.12, 0.14051, 8.077e-6, 66_144, _DISTSERVE),
        "opt-13b-tp2": Profile(
            24.541, 2.244e-4, 0.08716, 0.11179, 0.09055, 8.452e-6, 167_000, _DISTSERVE
        ),
        "opt-13b-tp4": Profile(
            25.901, 7.754e-5, 0.05528, 0.06277, 0.05151, 4.232e-7, 367_000, _DISTSERVE
        ),
        "opt-66b-tp4": Profile(
            39.582, 6.946e-4, 0.13581, 0.19508, 0.21284, 4.601e-5, 82_000, _DISTSERVE
        ),
    }
)
KNEE = 95
DEFAULT = "opt-13b"


def _settings(profile: Profile, name: str) -> SimulatedSettings:
    return SimulatedSettings(
        model=name,
        max_seqs=256,
        max_step_tokens=8192,
        kv_tokens=profile.kv_tokens,
        # The models end at 2,048; the traces do not, and cost is what is simulated here.
        max_context_tokens=8448,
        a_s=profile.a / 1e3,
        b_s=profile.b / 1e3,
        c_s=profile.c / 1e3,
        c_above_s=profile.c_above / 1e3,
        knee=KNEE,
        d_s=profile.d / 1e3,
        e_s=profile.e / 1e3,
        jitter=0.03,
    )


KINDS: Mapping[str, Callable[[SimulatedSettings], SimulatedSettings]] = MappingProxyType(
    {
        "E1": lambda s: msgspec.structs.replace(s, runs_to_completion=True, splits_prefill=False),
        "E2": lambda s: msgspec.structs.replace(s, splits_prefill=False),
        "E3": lambda s: msgspec.structs.replace(s, splits_prefill=True),
    }
)


def names() -> list[str]:
    """Every name that `executor_of` knows."""
    return [*KINDS, *(f"{profile}:{kind}" for profile in PROFILES for kind in KINDS)]


def executor_of(name: str) -> SimulatedSettings:
    """The executor of a name (`E2`, `opt-13b-tp2:E3`) or of a YAML file.

    A file holds the keys that an executor of kind `simulated` has in the configuration. Raises
    UnknownExecutor.
    """
    if (path := Path(name)).suffix in (".yaml", ".yml"):
        return _from_file(path)
    profile, _, kind = name.rpartition(":")
    found = PROFILES.get(profile or DEFAULT)
    if found is None or kind not in KINDS:
        raise UnknownExecutor(
            f"no executor {name!r}: there are {', '.join(names())}, and YAML files"
        )
    return KINDS[kind](_settings(found, name))


def _from_file(path: Path) -> SimulatedSettings:
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownExecutor(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UnknownExecutor(f"{path}: is no YAML: {error}") from error
    if not isinstance(written, dict):
        raise UnknownExecutor(f"{path}: should hold keys such as a, b, max_seqs")
    try:
        executor = SimulatedExecutor.model_validate({"kind": "simulated", **written})
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
        )
        raise UnknownExecutor(f"{path}: {told}") from error
    return msgspec.convert(executor.settings(), SimulatedSettings)
