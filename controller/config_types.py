"""What the sections of the configuration are made of: closed frozen records, strict scalars."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

Count = Annotated[int, Strict(), Field(ge=1)]
CountOrZero = Annotated[int, Strict(), Field(ge=0)]
Fraction = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Switch = Annotated[bool, Strict()]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )
