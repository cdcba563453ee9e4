"""How the progress of a measurement is shown: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class Shown:
    """Where progress is told; without a bar only the words are."""

    stream: TextIO
    bar: Progress | None = None

    def tell(self, words: str) -> None:
        """Write a line, above the bar."""
        if self.bar is None:
            print(words, file=self.stream, flush=True)
        else:
            self.bar.console.print(words, markup=False, highlight=False)

    def at(self, fraction: float) -> None:
        """How much is done, 0..1."""
        if self.bar is not None:
            (task,) = self.bar.task_ids
            if not self.bar.tasks[0].started:
                self.bar.start_task(task)
            self.bar.update(task, completed=min(1.0, fraction), visible=True)


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[Shown]:
    """Where to tell progress while the context lasts; stderr where no stream is named."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield Shown(stream)
        return
    columns = (TextColumn("measuring"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(file=stream), refresh_per_second=2, transient=True
    ) as bar:
        # The bar begins with the measurement: nobody knows how long loading takes.
        bar.add_task("measuring", start=False, total=1.0, visible=False)
        yield Shown(stream, bar)
