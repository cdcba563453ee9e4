"""Who shares a batch that runs to completion: who is prefilled next, who has to make room, and who
comes with the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from executor.contract import Finished


@dataclass(slots=True)
class Row:
    """One attempt: `left` is how many tokens it may still get, `stop_ids` are those that end it."""

    name: str
    tokens: list[int]
    left: int
    stop_ids: frozenset[int]
    priority: int


class Rows:
    """The attempts by name: those that wait for the next batch, and of this one those to prefill,
    those that decode, and those that are done and computed on."""

    def __init__(self) -> None:
        self._waiting: dict[str, Row] = {}
        self._prompts: dict[str, Row] = {}
        self._decoding: dict[str, Row] = {}
        self._done: dict[str, Finished] = {}

    def add(self, row: Row) -> None:
        """Let an attempt wait for the next batch."""
        self._waiting[row.name] = row

    def forget(self, names: Iterable[str]) -> None:
        """Let attempts go, wherever they are; unknown names are ignored."""
        for name in names:
            for rows in (self._waiting, self._prompts, self._decoding, self._done):
                rows.pop(name, None)

    @property
    def is_over(self) -> bool:
        """Whether nobody of the batch has anything to come."""
        return not self._prompts and not self._decoding

    @property
    def has_done(self) -> bool:
        """Whether somebody is done and not let go yet."""
        return bool(self._done)

    def is_done(self, name: str) -> bool:
        """Whether this one is done, and only computed on."""
        return name in self._done

    def computed(self) -> list[str]:
        """Who has a row in a step that decodes."""
        return [*self._decoding, *self._done]

    def begin(self) -> None:
        """Make a batch of all who wait; the one before it is over."""
        self._prompts, self._waiting = self._waiting, {}

    def next_prompts(self, max_tokens: int | None) -> list[Row]:
        """Who is prefilled in one step of so many tokens, padding included (None: everybody).

        Higher priorities go first, then shorter prompts, so that those that are padded to a common
        length are alike. A prompt that is too long by itself goes alone.
        """
        order = sorted(self._prompts.values(), key=lambda row: (-row.priority, len(row.tokens)))
        chosen, longest = order[:1], 0
        for row in order:
            longest = max(longest, len(row.tokens))
            if chosen[0] is row:
                continue
            if max_tokens is not None and (len(chosen) + 1) * longest > max_tokens:
                break
            chosen.append(row)
        return chosen

    def prefilled(self, rows: Iterable[Row]) -> None:
        """These decode from now on."""
        for row in rows:
            self._decoding[row.name] = self._prompts.pop(row.name)

    def rectangle(self, columns: int) -> tuple[int, int]:
        """Rows and columns that the batch will have when its prompts have joined the `columns`
        that are there, and everybody has got one more token."""
        longest = max((len(row.tokens) for row in self._prompts.values()), default=0)
        count = len(self._prompts) + len(self._decoding) + len(self._done)
        return count, max(columns, longest) + 1

    def youngest(self) -> str:
        """Who has to make room for the others: of the lowest priority who came last."""
        members = [*self._decoding.values(), *self._prompts.values()]
        return min(reversed(members), key=lambda row: row.priority).name

    def is_last(self, name: str, token: int) -> bool:
        """Count a token of one that decodes; whether it ends with it."""
        row = self._decoding[name]
        row.left -= 1
        return row.left == 0 or token in row.stop_ids

    def finish(self, name: str, finished: Finished) -> None:
        """This one is done; what is to be told of it when it goes."""
        del self._decoding[name]
        self._done[name] = finished

    def end_all(self) -> list[Finished]:
        """Let go of those that are done; answers what is to be told."""
        told = list(self._done.values())
        self._done.clear()
        return told
