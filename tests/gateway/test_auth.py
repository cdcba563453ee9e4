"""Keys, tiers and the admin's door."""

from __future__ import annotations

import hashlib

import openai
import pytest

from controller.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized
from executor.contract import TextModel
from gateway.auth import AdminDoor, Caller, ClientKey, Keyring, Secret, choose_tier
from gateway.front import Access
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import QUESTION, TIERS, serving

ENVIRON = {"GOLD_KEY": "sk-gold"}
HASH = hashlib.sha256(b"sk-silver").hexdigest()
KEYS = (
    ClientKey("goldsmith", "paid", Secret(env="GOLD_KEY")),
    ClientKey("silversmith", "free", Secret(sha256=HASH)),
)


def _keyring() -> Keyring:
    return Keyring(KEYS, default_tier="free", environ=ENVIRON)


def test_a_key_is_known_by_variable_or_hash() -> None:
    keyring = _keyring()
    assert keyring.caller("Bearer sk-gold") == Caller("goldsmith", "paid", bound=True)
    assert keyring.caller("bearer  sk-silver ") == Caller("silversmith", "free", bound=True)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic sk-gold", "sk-gold"])
def test_no_key_is_told_how_to_send_one(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="Authorization: Bearer KEY"):
        _keyring().caller(header)


@pytest.mark.parametrize("key", ["sk-bronze", HASH, "sk-gold ü", "sk-gold\udc80"])
def test_an_unknown_key_is_refused(key: str) -> None:
    with pytest.raises(Unauthorized, match="unknown API key"):
        _keyring().caller(f"Bearer {key}")


def test_without_keys_everybody_is_the_default_tier() -> None:
    keyring = Keyring((), default_tier="free", environ={})
    assert keyring.caller("Bearer whatever") == Caller("anonymous", "free", bound=False)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (Secret(), "either `sha256` or `env`"),
        (Secret(sha256=HASH, env="GOLD_KEY"), "either `sha256` or `env`"),
        (Secret(env="MISSING"), r"auth.keys.0.env: the environment variable MISSING"),
        (Secret(sha256="abc"), r"auth.keys.0.sha256: should be the SHA-256"),
    ],
)
def test_a_key_that_cannot_be_found_is_a_configuration_error(secret: Secret, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Keyring([ClientKey("x", "paid", secret)], default_tier="free", environ=ENVIRON)


def test_two_clients_cannot_have_one_key() -> None:
    same = ClientKey("thief", "free", Secret(env="GOLD_KEY"))
    with pytest.raises(ConfigError, match=r"auth.keys.2: the same key as goldsmith's"):
        Keyring((*KEYS, same), default_tier="free", environ=ENVIRON)


PAID = Caller("a", "paid", bound=True)
FREE = Caller("b", "free", bound=True)
ANYBODY = Caller("anonymous", "free", bound=False)


@pytest.mark.parametrize(
    ("asked", "caller", "tier"),
    [
        (None, PAID, "paid"),
        ("auto", PAID, "paid"),
        ("priority", PAID, "paid"),
        ("default", PAID, "free"),
        ("flex", PAID, "offline"),
        ("scale", PAID, "paid"),
        (None, FREE, "free"),
        ("priority", FREE, "free"),
        ("fast", FREE, "free"),
        ("flex", FREE, "offline"),
        (None, ANYBODY, "free"),
        ("auto", ANYBODY, "free"),
        ("priority", ANYBODY, "paid"),
        ("fast", ANYBODY, "paid"),
        ("flex", ANYBODY, "offline"),
    ],
)
def test_the_tier_is_the_lower_of_what_is_asked_and_what_the_key_may_use(
    asked: str | None, caller: Caller, tier: str
) -> None:
    assert choose_tier(asked, caller, TIERS) == tier


def test_an_unknown_service_tier_is_told_which_there_are() -> None:
    with pytest.raises(InvalidRequest, match="auto, default, flex, priority") as refused:
        choose_tier("gold", PAID, TIERS)
    assert refused.value.param == "service_tier"


async def test_the_answer_reports_the_tier_that_was_used(text: TextModel) -> None:
    desk = FakeDesk(text, reply=lambda _: [70])
    access = Access(keys=KEYS)
    async with serving(desk, access=access, environ=ENVIRON) as served:
        for key, asked, reported in (
            ("sk-gold", "auto", "priority"),
            ("sk-gold", "flex", "flex"),
            ("sk-silver", "priority", "default"),
        ):
            async with served.openai(key) as client:
                answer = await client.chat.completions.create(
                    model="tiny", messages=QUESTION, extra_body={"service_tier": asked}
                )
            assert answer.service_tier == reported
        async with served.openai("sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
    assert refused.value.code == "invalid_api_key"
    used = [(end.request.client, end.request.tier) for end in desk.ends]
    assert used == [("goldsmith", "paid"), ("goldsmith", "offline"), ("silversmith", "free")]


def _door(token: Secret | None, *, keys_exist: bool = False) -> AdminDoor:
    return AdminDoor(token, keys_exist=keys_exist, environ=ENVIRON)


def test_the_admin_token_opens_from_anywhere() -> None:
    door = _door(Secret(env="GOLD_KEY"))
    door.check("Bearer sk-gold", "203.0.113.5")
    with pytest.raises(Unauthorized, match="no admin token"):
        door.check(None, "127.0.0.1")
    with pytest.raises(Forbidden, match="not the admin token"):
        door.check("Bearer sk-silver", "127.0.0.1")


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_without_any_secret_this_machine_may_administer(peer: str) -> None:
    _door(None).check(None, peer)


@pytest.mark.parametrize("peer", ["192.168.1.2", "::ffff:10.0.0.1", "2001:db8::1", "", None])
def test_without_any_secret_nobody_else_may(peer: str | None) -> None:
    with pytest.raises(Forbidden, match="this machine only"):
        _door(None).check(None, peer)


def test_with_keys_but_no_admin_token_nobody_may() -> None:
    with pytest.raises(Forbidden, match="no admin token; configure one"):
        _door(None, keys_exist=True).check("Bearer sk-gold", "127.0.0.1")
