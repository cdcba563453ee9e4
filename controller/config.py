"""Everything that can be configured, in one frozen and typed model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, Strict

from controller.config_control import (
    ControlConfig,
    EnvelopeConfig,
    LimitsConfig,
    OwnPolicyConfig,
)
from controller.config_executors import ContinuousExecutor, ExecutorConfig
from controller.config_types import Count, Fraction, Name, Section, Switch
from controller.tiers import Late, Order, Targets, Tier
from controller.units import Duration, Size

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ServiceTier = Literal["priority", "default", "flex", "scale", "fast"]


class ServerConfig(Section):
    """Where the daemon listens and how it treats connections."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to bind. Anything but loopback needs `auth.keys`."""
    port: Annotated[int, Strict(), Field(ge=0, le=65535)] = 8080
    """TCP port; 0 is any free one, printed at start."""
    drain_timeout: Duration = 30.0
    """After SIGTERM, running requests may go on for this long."""
    keep_alive_after: Duration = 5.0
    """A stream without a token for this long gets a comment line, and again each such time."""
    max_body: Size = 8 * 2**20
    """Longest request body."""
    stream_buffer: Size = 64 * 2**10
    """Unsent bytes of one stream from which its tokens coalesce; at twice that it is dropped."""
    slow_reader_after: Duration = 30.0
    """A client that has not taken the rest of its stream this long after its end is dropped."""
    expected_new_tokens: Count = 256
    """Length that a completion without `max_tokens` is thought to reach, for the accounts only."""
    access_log: Switch = False
    """Whether each request is logged at its end."""
    watch_config: Switch = False
    """Whether the file of the configuration is loaded again when it has changed."""


class KeyConfig(Section):
    """One API key: its owner, its tier, and where to find it (`sha256` or `env`, not both)."""

    name: Name
    """Who owns the key; the unit of fairness and a field of logs, never a metrics label."""
    tier: str
    """The highest tier that this key may use."""
    sha256: Digest | None = None
    """SHA-256 of the key, 64 lower-case hexadecimal digits (`printf %s KEY | sha256sum`)."""
    env: Variable | None = None
    """Environment variable that holds the key."""


class AuthConfig(Section):
    """Who may use the daemon, and as which tier."""

    keys: tuple[KeyConfig, ...] = ()
    """API keys. None: everybody is `default_tier`, and the daemon binds loopback only."""
    default_tier: str = "free"
    """The tier of everybody while there are no keys."""
    admin_token_env: Variable | None = None
    """Environment variable that holds the token for `/admin`."""
    admin_token_sha256: Digest | None = None
    """SHA-256 of the token for `/admin`. Neither: it is open while there are no keys, else shut."""


class TargetsConfig(Section):
    """What a tier is promised. At least one of `ttft`, `itl` and `e2e`."""

    ttft: Duration | None = None
    """Time to first token, from arrival at the daemon."""
    itl: Duration | None = None
    """Inter-token latency, as the mean of a request."""
    e2e: Duration | None = None
    """Time to the end of the completion, from arrival at the daemon."""
    attainment: Annotated[float, Strict(), Field(gt=0, lt=1)] = 0.99
    """Fraction of requests that must meet every target."""


class TierConfig(Section):
    """A class of customer."""

    priority: Annotated[int, Strict()]
    """Higher goes first. No two tiers share one."""
    service_tier: ServiceTier | None = None
    """The value of OpenAI's `service_tier` that asks for this tier and is reported for it."""
    targets: TargetsConfig | None = None
    """What is promised; null promises nothing."""
    min_share: Fraction = 0.0
    """Fraction of all tokens that is guaranteed while this tier waits. They sum to 1 at most."""
    order: Order = "edf"
    """Who goes first within the tier: `edf` earliest deadline, `fcfs` first come, `shortest`."""
    late: Late = "last"
    """Who can no longer meet the targets goes `last` in the tier, or is turned away (`drop`)."""
    sheddable: Switch = False
    """Whether new requests are turned away by lot while a higher tier misses its targets."""
    restart_unstreamed: Switch = False
    """Whether a higher tier may take the seat of a request that has sent nothing to its client,
    where the executor cannot resume it: it begins again later."""
    max_seats: Count | None = None
    """Sequences of this tier at once on one executor; null: `max_batch_size` alone bounds it."""
    max_queue_requests: Count = 1000
    """Requests that may wait. Beyond: 429."""
    max_queue_tokens: Count = 1_000_000
    """Tokens (prompt and wanted output) that may wait. Beyond: 429."""
    max_queue_size: Size = 64 * 2**20
    """Bytes of bodies that may wait. Beyond: 429."""
    wait_timeout: Duration | None = None
    """How long a request of this tier may be held for company; null: the common limit."""
    policy: OwnPolicyConfig | None = None
    """A rule of the tier's own for its seats and its hold; null: it has the common limits."""
    start_within: Duration | None = None
    """A request that has not begun after this long expires; null: it waits."""
    finish_within: Duration | None = None
    """A request that has not ended after this long is ended; null: it runs."""
    max_starvation: Duration = 30.0
    """After waiting this long without progress, the tier gets one seat whatever is above it."""


def _default_tiers() -> Mapping[str, TierConfig]:
    paid = TargetsConfig(ttft=1.0, itl=0.1, attainment=0.99)
    free = TargetsConfig(ttft=5.0, itl=0.15, attainment=0.9)
    offline = TargetsConfig(e2e=600.0, attainment=0.99)
    return {
        "paid": TierConfig(priority=20, service_tier="priority", targets=paid),
        "free": TierConfig(
            priority=10,
            service_tier="default",
            targets=free,
            min_share=0.1,
            start_within=60.0,
        ),
        "offline": TierConfig(
            priority=0,
            service_tier="flex",
            targets=offline,
            min_share=0.05,
            max_queue_requests=10_000,
            max_queue_tokens=10_000_000,
            max_starvation=60.0,
        ),
    }


class LogConfig(Section):
    """Structured logs, to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, JSON elsewhere."""


class RecordConfig(Section):
    """A record of the traffic, without any content, that `headway simulate` replays."""

    path: Annotated[str, Field(min_length=1)] | None = None
    """CSV file for arrival, tier and lengths of each request; null: nothing is recorded."""
    max_size: Size = 64 * 2**20
    """A file of this size is put aside as PATH.1, and a new one is begun."""
    keep: Count = 4
    """How many files that were put aside are kept."""


class Config(Section):
    """Everything. Durations are floats of seconds and sizes are bytes once it is read."""

    server: ServerConfig = ServerConfig()
    """Where the daemon listens and how it treats connections."""
    auth: AuthConfig = AuthConfig()
    """Who may use it, and as which tier."""
    tiers: Mapping[Name, TierConfig] = Field(default_factory=_default_tiers)
    """Classes of customer by name. A file that names tiers names all of them."""
    limits: LimitsConfig = LimitsConfig()
    """The limits in force at start."""
    envelope: EnvelopeConfig = EnvelopeConfig()
    """The hard range of each limit."""
    control: ControlConfig = ControlConfig()
    """The control loop."""
    executors: tuple[ExecutorConfig, ...] = (ContinuousExecutor(kind="continuous"),)
    """What runs batches. A file that lists executors lists all of them."""
    log: LogConfig = LogConfig()
    """Structured logs."""
    record: RecordConfig = RecordConfig()
    """A record of the traffic for replay."""

    def tier_policies(self) -> dict[str, OwnPolicyConfig]:
        """The policies of tiers that have one of their own."""
        return {name: t.policy for name, t in self.tiers.items() if t.policy is not None}

    def tier_list(self) -> tuple[Tier, ...]:
        """The tiers as the core knows them, highest priority first."""
        made = (_tier(name, written) for name, written in self.tiers.items())
        return tuple(sorted(made, key=lambda tier: -tier.priority))


def _tier(name: str, written: TierConfig) -> Tier:
    promised = written.targets
    targets = Targets()
    if promised is not None:
        targets = Targets(
            ttft_s=promised.ttft,
            itl_s=promised.itl,
            e2e_s=promised.e2e,
            attainment=promised.attainment,
        )
    return Tier(
        name=name,
        priority=written.priority,
        targets=targets,
        min_share=written.min_share,
        max_starvation_s=written.max_starvation,
        order=written.order,
        late=written.late,
        sheddable=written.sheddable,
        restart_unstreamed=written.restart_unstreamed,
        max_queue_requests=written.max_queue_requests,
        max_queue_tokens=written.max_queue_tokens,
        max_queue_bytes=written.max_queue_size,
        max_seats=written.max_seats,
        wait_timeout_s=written.wait_timeout,
        start_within_s=written.start_within,
        finish_within_s=written.finish_within,
    )
