"""What several executors under one queue serve together: one language, and what all of them can."""

from __future__ import annotations

from functools import reduce

import msgspec

from controller.errors import ConfigError, NotReady
from executor.contract import Capacity, Ready, TextModel


class Served:
    """Remembers of each executor what it said when it was ready last."""

    def __init__(self) -> None:
        self._ready: dict[str, Ready] = {}
        self._together: tuple[TextModel, Capacity] | None = None

    def model(self) -> tuple[TextModel, Capacity]:
        """What requests may count on, whichever executor takes them; the longest context there is.

        Raises NotReady before the first executor was ready.
        """
        if self._together is None:
            raise NotReady("the model is still loading", retry_after_s=1.0)
        return self._together

    def add(self, name: str, ready: Ready) -> None:
        """An executor is ready. Raises ConfigError where the tokens of another mean something else
        to it."""
        for other, known in self._ready.items():
            if other != name and known.text != ready.text:
                raise ConfigError(
                    f"executor {name!r} has another tokenizer than {other!r}: executors under one "
                    "queue serve one model"
                )
        self._ready[name] = ready
        capacities = [one.capacity for one in self._ready.values()]
        longest = max(capacities, key=lambda one: min(one.max_context_tokens, one.kv_tokens))
        features = reduce(frozenset.intersection, (one.features for one in capacities))
        self._together = ready.text, msgspec.structs.replace(longest, features=features)
