"""Log-probabilities through the whole daemon, with a real model: as evaluations ask for them, and
across a preemption."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.client import Client, by
from tests.e2e.daemon import Daemon, settings
from tests.tiny_model import build

# Two processes import torch first.
pytestmark = pytest.mark.timeout(180)

TOKENS = 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    executor = {
        "kind": "continuous",
        "model": str(folder),
        "served_name": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "max_step_tokens": 64,
        "warmup_sizes": [1],
    }
    # One seat, so that a paid request needs the one that is taken.
    config = settings(
        limits={"max_batch_size": 1, "max_batch_tokens": 32, "wait_timeout": "0s"},
        envelope={"max_batch_tokens": [16, 64]},
        tiers={
            "paid": {"priority": 20, "service_tier": "priority", "targets": {"ttft": "50ms"}},
            "offline": {"priority": 0, "service_tier": "flex", "targets": {"e2e": "10m"}},
        },
        executors=[executor],
    )
    with Daemon(tmp_path_factory.mktemp("daemon"), config) as started:
        yield started.listening()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as client:
        # A real model takes its time to load where others use the machine.
        await client.ready(patience_s=120.0)
        yield client


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    return loaded.eval()


def by_itself(model: Any, ids: list[int]) -> list[list[float]]:
    """The log-probabilities of every token after each of these, as the model by itself has them."""
    import torch

    with torch.inference_mode():
        told: list[list[float]] = model(torch.tensor([ids])).logits[0].log_softmax(-1).tolist()
    return told


async def test_multiple_choice_is_scored_as_the_model_by_itself_scores_it(
    client: Client, model: Any
) -> None:
    questions = [([40, 50, 60, 70, 80] * 10, [90, 91, 92]), ([33, 44, 55], [66])]
    for max_tokens in (1, 0):
        body = {
            "model": "tiny",
            "prompt": [context + answer for context, answer in questions],
            "temperature": 0,
            "max_tokens": max_tokens,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        async with client.session.post("/v1/completions", json=body) as response:
            assert response.status == 200
            record = await response.json()
        assert record["usage"]["completion_tokens"] == max_tokens * len(questions)
        for choice, (context, answer) in zip(record["choices"], questions, strict=True):
            columns = choice["logprobs"]
            places = slice(len(context), len(context) + len(answer))
            likeliest = by_itself(model, context + answer)
            expected = [likeliest[len(context) - 1 + i][one] for i, one in enumerate(answer)]
            assert len(columns["tokens"]) == len(context) + len(answer) + max_tokens
            assert columns["token_logprobs"][places] == pytest.approx(expected, abs=1e-4)
            tops = [max(top.values()) for top in columns["top_logprobs"][places]]
            most = [max(likeliest[len(context) - 1 + i]) for i in range(len(answer))]
            assert tops == pytest.approx(most, abs=1e-4)


async def test_every_rule_of_sampling_is_taken_from_the_official_client(
    client: Client, daemon: Daemon
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.address}/v1", api_key="-") as sdk:
        answer = await sdk.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello there"}],
            max_tokens=6,
            seed=7,
            presence_penalty=0.5,
            frequency_penalty=0.5,
            logit_bias={"77": 100},
            logprobs=True,
            top_logprobs=20,
            extra_body={"repetition_penalty": 1.1, "min_p": 0.9},
        )
    [choice] = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 6
    assert len({one.token for one in choice.logprobs.content}) == 1
    # The model by itself would have had others in mind.
    assert all(len(one.top_logprobs) == 20 for one in choice.logprobs.content)
    assert all(one.logprob < one.top_logprobs[0].logprob for one in choice.logprobs.content)


async def told(client: Client, begun: asyncio.Event | None = None) -> list[float]:
    """The log-probabilities of a long stream; `begun` is set when there are twenty."""
    body = {
        "prompt": [40, 50, 60],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "seed": 3,
        "frequency_penalty": 1.0,
        "service_tier": "flex",
        "logprobs": 0,
        "echo": True,
        "stream": True,
    }
    numbers: list[float] = []
    async with client.session.post("/v1/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                logprobs = json.loads(line[6:])["choices"][0]["logprobs"] or {}
                numbers += logprobs.get("token_logprobs", [])
            if begun is not None and len(numbers) > 20:
                begun.set()
    return numbers


async def test_across_a_preemption_none_is_lost_and_none_comes_twice(client: Client) -> None:
    async def preemptions() -> int:
        return by(await client.metrics(), "headway_preemptions_total", "tier")["offline"]

    expected = await told(client)
    assert len(expected) == 3 + TOKENS
    before = await preemptions()
    begun = asyncio.Event()
    stream = asyncio.create_task(told(client, begun))
    await begun.wait()
    paid = await client.ask(tokens=2, service_tier="priority")
    assert paid.ended == "done"
    numbers = await stream
    assert await preemptions() == before + 1
    assert numbers[0] is expected[0] is None
    assert numbers[1:] == pytest.approx(expected[1:], abs=1e-4)
