"""How long prompts and completions are, where no trace says so."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: medians, spreads of the logarithms, and upper bounds."""

    name: str
    prompt: float
    prompt_spread: float
    output: float
    output_spread: float
    max_prompt: int = 4096
    max_output: int = 1000

    def draw(self, random_: random.Random) -> tuple[int, int]:
        """Tokens of a prompt and of its completion, at least 1 each."""
        prompt = self.prompt * math.exp(random_.gauss(0.0, self.prompt_spread))
        output = self.output * math.exp(random_.gauss(0.0, self.output_spread))
        return (
            max(1, min(self.max_prompt, round(prompt))),
            max(1, min(self.max_output, round(output))),
        )

    def times(self, factor: float) -> Lengths:
        """The same with prompts longer by a factor; the bound stays."""
        return replace(self, name=f"{self.name} x{factor:g}", prompt=self.prompt * factor)

    def within(self, context: int) -> Lengths:
        """The same, so that prompt and completion fit into so many tokens together."""
        output = max(1, min(self.max_output, context // 2))
        prompt = max(1, min(self.max_prompt, context - output))
        return replace(self, max_output=output, max_prompt=prompt)

    def sample(self, count: int = 2000) -> list[tuple[int, int]]:
        """Always the same draws, to reckon means with."""
        drawn = random.Random(f"lengths/{self.name}")
        return [self.draw(drawn) for _ in range(count)]


# Fitted by moments of the logarithms to the Azure LLM inference trace 2023 (conversation and code;
# Azure/AzurePublicDataset, CC-BY-4.0) and to the arXiv summarisation lengths of Vidur (MIT).
CHAT = Lengths("chat", 760.0, 0.985, 151.0, 0.859, 4096, 1000)
CODE = Lengths("code", 1095.0, 1.36, 16.3, 0.847, 7437, 500)
JOBS = Lengths("jobs", 2245.0, 0.755, 179.0, 0.796, 4054, 1000)
