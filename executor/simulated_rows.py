"""Which sequences may run on a simulated executor, and which of them have a row in the next step.

Everything is counted in tokens; a plan is a list of rows with the tokens that each computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.contract import FinishReason, Key, Sampling, SimulatedSettings, Submit
from executor.prefill_order import shares_by_priority
from executor.simulated_text import END_OF_TEXT, PHRASE_BYTES, phrase_at


@dataclass(slots=True, eq=False)
class Row:
    """One attempt at one request: `need` tokens still to prefill, `kv` tokens held.

    `position` is the index of the next token in the completion; it ends before index `length`,
    and with the end-of-text token at `ends_at` if that is not None. `phrase` is what it is saying;
    `told` is the index of the first token that was not reported yet, where not all are at once.
    """

    key: Key
    sampling: Sampling
    need: int
    position: int
    length: int
    ends_at: int | None
    priority: int = 0
    kv: int = 0
    phrase: bytes = b""
    told: int = 0

    def draw(self, seed: int) -> tuple[int, FinishReason | None]:
        """The next token, and why it is the last one if it is."""
        if self.position == self.ends_at:
            return END_OF_TEXT, "stop"
        offset = self.position % PHRASE_BYTES
        if offset == 0 or not self.phrase:
            self.phrase = phrase_at(seed, self.sampling.seed, self.position)
        token = self.phrase[offset]
        stops = self.sampling.stop_token_ids
        if stops and token in stops and self.position >= self.sampling.min_tokens:
            return token, "stop"
        return token, "length" if self.position + 1 == self.length else None


Plan = list[tuple[Row, int]]


def row_of(settings: SimulatedSettings, submit: Submit) -> Row:
    """The row of a sequence that begins, or begins again with the tokens that it has."""
    position = len(submit.tokens) - submit.prompt_length
    ends_at = None
    if settings.output_tokens is not None and not submit.sampling.ignore_eos:
        ends_at = max(settings.output_tokens - 1, submit.sampling.min_tokens, position)
    return Row(
        key=Key(submit.request_id, submit.attempt),
        sampling=submit.sampling,
        need=len(submit.tokens),
        position=position,
        length=position + submit.max_new_tokens,
        ends_at=ends_at,
        priority=submit.priority,
        told=position,
    )


def refusal(settings: SimulatedSettings, submit: Submit) -> str | None:
    """Why this sequence can never run here, or None if it can."""
    total = len(submit.tokens) + submit.max_new_tokens
    if submit.prompt_length < 1 or submit.max_new_tokens < 1:
        return "a prompt and an output of at least one token each are needed"
    if total > settings.max_context_tokens:
        return f"{total} tokens exceed max_context_tokens = {settings.max_context_tokens}"
    if total - 1 > settings.kv_tokens:  # nothing reads the last token
        return f"{total - 1} tokens of KV exceed kv_tokens = {settings.kv_tokens}"
    whole = settings.runs_to_completion or not settings.splits_prefill
    # What it generated before it was given back does not count: else it could not come back.
    if whole and submit.prompt_length > settings.max_step_tokens:
        return (
            f"a prompt of {submit.prompt_length} tokens exceeds max_step_tokens = "
            f"{settings.max_step_tokens}, and prompts are not split here"
        )
    return None


def plan_chunked(rows: Sequence[Row], budget: int, *, free: int) -> tuple[Plan, list[Key]]:
    """Rows that decode first, then prompts as far as `budget` tokens and `free` KV reach.

    Which prompts: see `executor.prefill_order`. Answers the plan and who stands still for want of
    KV.
    """
    plan, stalled = _plan_decodes(rows, budget, free=free)
    budget -= len(plan)
    free -= len(plan)
    prompts = _prompts(rows)
    if not prompts or budget <= 0:
        return plan, stalled
    parts = shares_by_priority(
        [row.need for row in prompts], min(budget, free), [row.priority for row in prompts]
    )
    for row, count in zip(prompts, parts, strict=True):
        if count:
            plan.append((row, count))
        elif free < budget:
            stalled.append(row.key)
    return plan, stalled


def plan_prefill_first(rows: Sequence[Row], budget: int, *, free: int) -> tuple[Plan, list[Key]]:
    """Whole prompts, by priority and age, none passing another; decodes when no prompt can go.

    A prompt over `budget` tokens goes alone: no wait would make it fit.
    """
    plan: Plan = []
    stalled: list[Key] = []
    left = free
    for row in _prompts(rows):
        if stalled or row.need > left:
            stalled.append(row.key)
            continue
        if plan and row.need > budget:
            break
        plan.append((row, row.need))
        budget -= row.need
        left -= row.need
    if plan:
        return plan, stalled
    plan, without_kv = _plan_decodes(rows, budget, free=free)
    return plan, stalled + without_kv


def _prompts(rows: Sequence[Row]) -> list[Row]:
    """Those in prefill, highest priority first, in order of arrival."""
    prompts = [row for row in rows if row.need]
    if len(prompts) > 1:
        prompts.sort(key=lambda row: -row.priority)
    return prompts


def _plan_decodes(rows: Sequence[Row], budget: int, *, free: int) -> tuple[Plan, list[Key]]:
    decodes = [row for row in rows if row.need == 0][:budget]
    return [(row, 1) for row in decodes[:free]], [row.key for row in decodes[free:]]
