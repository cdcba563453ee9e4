"""Who is asking: an API key becomes a client and the tier it may use; the admin has a token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized
from gateway.settings import TierPlan

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Sold by OpenAI as the fastest there is. Who asks for it gets the best tier of the key.
_FASTEST = frozenset({"scale", "fast"})


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a key or token is found: its SHA-256 in hexadecimal, or an environment variable."""

    sha256: str | None = None
    env: str | None = None

    def digest(self, environ: Mapping[str, str], *, where: str) -> bytes:
        """SHA-256 of the secret. Raises ConfigError, naming `where`, when there is none."""
        if (self.sha256 is None) == (self.env is None):
            raise ConfigError(f"{where}: give either `sha256` or `env`")
        if self.env is not None:
            value = environ.get(self.env, "")
            if not value:
                raise ConfigError(
                    f"{where}.env: the environment variable {self.env} is not set or empty; "
                    "set it to the key"
                )
            return _digest(value)
        if not _SHA256.fullmatch(self.sha256 or ""):
            raise ConfigError(
                f"{where}.sha256: should be the SHA-256 of the key, 64 lower-case hexadecimal "
                "digits (printf %s KEY | sha256sum)"
            )
        return bytes.fromhex(self.sha256 or "")


@dataclass(frozen=True, slots=True)
class ClientKey:
    """One API key: the client that owns it and the highest tier that it may use."""

    client: str
    tier: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `tier` is the one served by default; `bound` says that no higher one may be."""

    client: str
    tier: str
    bound: bool


class Keyring:
    """API keys by their digest. Without keys everybody is `anonymous`, in the default tier.

    An anonymous caller may ask for any tier by `service_tier`: without keys the daemon listens on
    loopback only, and whoever tries the tiers out on their own machine is entitled to all of them.
    """

    def __init__(
        self, keys: Sequence[ClientKey], *, default_tier: str, environ: Mapping[str, str]
    ) -> None:
        self._anonymous = Caller("anonymous", default_tier, bound=False)
        self._callers: dict[bytes, Caller] = {}
        for index, key in enumerate(keys):
            where = f"auth.keys.{index}"
            digest = key.secret.digest(environ, where=where)
            if digest in self._callers:
                raise ConfigError(f"{where}: the same key as {self._callers[digest].client}'s")
            self._callers[digest] = Caller(key.client, key.tier, bound=True)

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this `Authorization` header. Raises Unauthorized."""
        if not self._callers:
            return self._anonymous
        key = _bearer(authorization)
        if key is None:
            raise Unauthorized("no API key: send it as `Authorization: Bearer KEY`")
        # Found by its hash, so that the time taken tells nothing of a key that exists.
        caller = self._callers.get(_digest(key))
        if caller is None:
            raise Unauthorized("unknown API key")
        return caller


class AdminDoor:
    """Who may use `/admin`: the bearer of the token or, where there are no secrets, loopback."""

    def __init__(
        self, token: Secret | None, *, keys_exist: bool, environ: Mapping[str, str]
    ) -> None:
        self._digest = None if token is None else token.digest(environ, where="auth.admin_token")
        self._keys_exist = keys_exist

    def check(self, authorization: str | None, peer: str | None) -> None:
        """Let the request in, or raise Unauthorized or Forbidden. `peer` is an IP address."""
        if self._digest is not None:
            token = _bearer(authorization)
            if token is None:
                raise Unauthorized("no admin token: send it as `Authorization: Bearer TOKEN`")
            if not hmac.compare_digest(_digest(token), self._digest):
                raise Forbidden("this is not the admin token")
        elif self._keys_exist:
            raise Forbidden("there are API keys but no admin token; configure one to use /admin")
        elif not _is_loopback(peer):
            raise Forbidden("without an admin token, /admin is open to this machine only")


def choose_tier(asked: str | None, caller: Caller, tiers: Mapping[str, TierPlan]) -> str:
    """The tier that serves this request: the lower of what is asked and what the key may use.

    `asked` is OpenAI's `service_tier`; None and "auto" ask for the caller's own tier. Raises
    InvalidRequest for a value that names no tier.
    """
    if asked is None or asked == "auto":
        return caller.tier
    wanted = [name for name, plan in tiers.items() if plan.service_tier == asked]
    if not wanted and asked in _FASTEST:
        wanted = [max(tiers, key=lambda name: tiers[name].priority)]
    if not wanted:
        known = ", ".join(sorted({plan.service_tier for plan in tiers.values()} | {"auto"}))
        raise InvalidRequest(
            f"service_tier: {asked!r} is not served here; use one of {known}", param="service_tier"
        )
    names = [*wanted, caller.tier] if caller.bound else wanted
    return min(names, key=lambda name: tiers[name].priority)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _bearer(authorization: str | None) -> str | None:
    scheme, _, value = (authorization or "").partition(" ")
    value = value.strip()
    return value if scheme.lower() == "bearer" and value else None


def _is_loopback(peer: str | None) -> bool:
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    # A listener on `::` sees IPv4 peers as mapped addresses.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
