"""What the HTTP side goes by, as it is configured: a reload exchanges it as a whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from controller.config import Config, KeyConfig
from gateway.auth import AdminDoor, ClientKey, Keyring, Secret
from gateway.settings import GatewaySettings, TierPlan


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the routes: the keys of clients, and the admin's token."""

    keys: tuple[ClientKey, ...] = ()
    admin_token: Secret | None = None


@dataclass(slots=True)
class Front:
    """Settings, keys and token in force. Whoever handles a request looks here when it comes."""

    settings: GatewaySettings
    keyring: Keyring
    door: AdminDoor

    @classmethod
    def build(
        cls, settings: GatewaySettings, access: Access, *, environ: Mapping[str, str]
    ) -> Front:
        """Secrets that are named by a variable are looked up in `environ`. Raises ConfigError."""
        keyring = Keyring(access.keys, default_tier=settings.default_tier, environ=environ)
        door = AdminDoor(access.admin_token, keys_exist=len(keyring) > 0, environ=environ)
        return cls(settings, keyring, door)

    def become(self, other: Front) -> None:
        """Go by what another one does, from the next request on."""
        self.settings, self.keyring, self.door = other.settings, other.keyring, other.door


def settings_of(config: Config, *, created: int | None = None) -> GatewaySettings:
    """What the HTTP side is told. `created` is the unix time of the models, None: now."""
    server = config.server
    names = [
        str(executor.settings().get("served_name") or executor.model)
        for executor in config.executors
    ]
    return GatewaySettings(
        models=tuple(dict.fromkeys(name for name in names if name)),
        tiers={
            name: TierPlan(
                priority=tier.priority,
                service_tier=tier.service_tier or name,
                start_within_s=tier.start_within,
                finish_within_s=tier.finish_within,
            )
            for name, tier in config.tiers.items()
        },
        default_tier=config.auth.default_tier,
        created=int(time.time()) if created is None else created,
        keep_alive_after_s=server.keep_alive_after,
        max_body_bytes=server.max_body,
        stream_buffer_bytes=server.stream_buffer,
        slow_reader_after_s=server.slow_reader_after,
        expected_new_tokens=server.expected_new_tokens,
        access_log=server.access_log,
    )


def access_of(config: Config) -> Access:
    """Who may use the daemon."""
    auth = config.auth
    token = None
    if auth.admin_token_env is not None or auth.admin_token_sha256 is not None:
        token = Secret(sha256=auth.admin_token_sha256, env=auth.admin_token_env)
    return Access(keys=tuple(_client_key(key) for key in auth.keys), admin_token=token)


def _client_key(key: KeyConfig) -> ClientKey:
    return ClientKey(key.name, key.tier, Secret(sha256=key.sha256, env=key.env))
