"""How fast the real engine is by itself, in turns with an OpenAI server over the same model.

`python -m bench.engine_loop --model DIR [--peer http://127.0.0.1:PORT] [--rounds 4]` runs chat
requests of 32 tokens at several levels of concurrency and prints tokens per second and ratios.
The peer is started by hand and counts for itself (`usage`); the order is A B B A ...
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import deque
from itertools import count
from time import perf_counter
from typing import Any

import aiohttp

from executor.continuous import ContinuousEngine
from executor.contract import ContinuousSettings, Sampling, Submit, Work

SUBJECTS = (
    "a lighthouse keeper",
    "the first snow in the city",
    "an old violin",
    "a bus that never stops",
    "the sea at night",
    "two brothers and a map",
    "a garden behind a wall",
    "the last train home",
)
REQUESTS = 32
TOKENS = 32


def prompts() -> list[str]:
    """One question a request: none is another's prefix beyond the chat template."""
    return [f"Tell me story number {i} about {SUBJECTS[i % 8]}." for i in range(REQUESTS)]


class Alone:
    """The engine driven by the shortest loop there is: keep `level` sequences running."""

    def __init__(self, model: str) -> None:
        settings = ContinuousSettings(model=model, served_name="bench", threads=1)
        self._engine = ContinuousEngine(settings)
        self._engine.load(lambda stage, fraction: None)
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        self._prompts = [
            list(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}], add_generation_prompt=True
                )["input_ids"]
            )
            for prompt in prompts()
        ]
        self._number = count()

    def tokens_per_s(self, level: int) -> float:
        """All requests, `level` at once."""
        engine, waiting = self._engine, deque(self._prompts)
        tokens, running, start = 0, 0, perf_counter()
        while waiting or running:
            submit = []
            while waiting and running < level:
                ids = waiting.popleft()
                name = str(next(self._number))
                submit.append(Submit(name, 1, ids, len(ids), TOKENS, Sampling()))
                running += 1
            if submit:
                engine.apply(Work(1, 2048, submit))
            report = engine.step()
            running -= len(report.finished)
            tokens += sum(len(part.ids) for part in report.tokens)
        return tokens / (perf_counter() - start)


class Peer:
    """A server of the OpenAI API, asked without streaming."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    def tokens_per_s(self, level: int) -> float:
        """All requests, `level` at once."""
        return asyncio.run(self._run(level))

    async def _run(self, level: int) -> float:
        waiting = deque(prompts())
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def client() -> int:
                tokens = 0
                while waiting:
                    tokens += await self._ask(session, waiting.popleft())
                return tokens

            start = perf_counter()
            counts = await asyncio.gather(*(client() for _ in range(level)))
            return sum(counts) / (perf_counter() - start)

    async def _ask(self, session: aiohttp.ClientSession, prompt: str) -> int:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": TOKENS,
            "temperature": 0,
        }
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            return int((await response.json())["usage"]["completion_tokens"])


def main() -> None:
    """Print one line a level: the median of each side, and of the ratios within a round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a model's folder")
    parser.add_argument("--peer", help="base URL of a server to compare with")
    parser.add_argument("--levels", default="1,4,16,32", help="how many requests at once")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    alone = Alone(arguments.model)
    peer = Peer(arguments.peer, arguments.model) if arguments.peer else None
    for level in map(int, arguments.levels.split(",")):
        ours, theirs = [], []
        for number in range(arguments.rounds):
            is_ours_first = number % 2 == 0
            if is_ours_first:
                ours.append(alone.tokens_per_s(level))
            if peer is not None:
                theirs.append(peer.tokens_per_s(level))
            if not is_ours_first:
                ours.append(alone.tokens_per_s(level))
        line = f"{level:3d} at once: engine {statistics.median(ours):6.1f} tokens/s"
        if theirs:
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            line += f", peer {statistics.median(theirs):6.1f}"
            line += f", ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}"
            line += f" to {max(ratios):.2f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
