"""An executor that keeps a queue of its own, as vLLM's scheduler does: for checking the simulator.

Ours never looks like this: it is given no more than it can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from executor.contract import Key, SimulatedSettings
from executor.simulated_leaps import LeapingSimulation
from executor.simulated_rows import Plan, Row

BLOCK = 16


class PreemptingSimulation(LeapingSimulation):
    """First come, first served: running rows take a token each, and chunks of prompts what is left
    of the budget; who waits comes in while blocks are free.

    A row that finds no block takes those of the youngest, which waits again at its place and
    computes everything anew; nobody comes in in that step. After vLLM's scheduler (v1). Memory is
    counted in blocks; the settings' own bound, which the ledger goes by, is to be out of reach.
    """

    def __init__(
        self, settings: SimulatedSettings, lengths: Mapping[str, int], *, blocks: int
    ) -> None:
        super().__init__(settings, lengths)
        self.free_blocks = blocks
        self._blocks: dict[Key, int] = {}
        self.preempted = 0

    def _plan(self) -> tuple[Plan, list[Key]]:
        budget = self._max_batch_tokens
        plan: list[tuple[Row, int]] = []
        inside = [row for row in self._running.values() if row.key in self._blocks]
        preempted = False
        while inside and budget:
            row = inside.pop(0)
            count = min(row.need or 1, budget)
            while not self._hold(row, count):
                victim = inside.pop() if inside else row
                self._drop(victim)
                preempted = True
                if victim is row:
                    break
            else:
                plan.append((row, count))
                budget -= count
        for row in [] if preempted else list(self._running.values()):
            if not budget:
                break
            if row.key in self._blocks:
                continue
            # The whole prompt has to fit, not its first chunk only.
            if math.ceil(row.need / BLOCK) > self.free_blocks:
                break
            count = min(row.need, budget)
            self._hold(row, count)
            plan.append((row, count))
            budget -= count
        return plan, []

    def _hold(self, row: Row, count: int) -> bool:
        """Take the blocks for so many more tokens; False when there are not enough."""
        held = self._blocks.get(row.key, 0)
        more = math.ceil((row.kv + count) / BLOCK) - held
        if more > self.free_blocks:
            return False
        self.free_blocks -= more
        self._blocks[row.key] = held + more
        return True

    def _drop(self, row: Row) -> None:
        self.free_blocks += self._blocks.pop(row.key)
        self._kv_held -= row.kv
        # What it generated is to be computed again too, and its last token as ever.
        row.need = row.kv + (row.need or 1)
        row.kv = 0
        self.preempted += 1

    def _remove(self, key: Key) -> None:
        super()._remove(key)
        self.free_blocks += self._blocks.pop(key, 0)

    def _equal_steps(self) -> int:
        return 1
