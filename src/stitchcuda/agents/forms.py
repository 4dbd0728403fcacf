"""Forms that models fill in, read as they are meant: null for a default, words with commas for a list, '1.5x' for a
number. The JSON schema that they are shown asks for the plain form.
"""

from __future__ import annotations

import re
import textwrap
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

_FACTOR = re.compile(r"[~≈]?\s*(\d+(?:\.\d+)?)\s*(?:x|×|times)?(?:\s*(?:-|–|to)\s*\d.*)?", re.IGNORECASE)


class Form(BaseModel):
    """Null in a field that has a default stands for the default."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        needed = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {name: given for name, given in value.items() if given is not None or name in needed}


def _words(value: object) -> object:
    """A list from what models write for one: nothing, or words with commas."""
    if value is None:
        return []
    if not isinstance(value, str):
        return value
    inner = value.strip()
    if inner[:1] in ("[", "(") and inner[-1:] in ("]", ")"):
        inner = inner[1:-1]
    return [name for part in inner.split(",") if (name := part.strip(" \n\t\"'"))]


def _sizes(value: object) -> object:
    """The same, with numbers where they are some."""
    found = _words(value)
    if isinstance(value, str) and isinstance(found, list):
        return [int(size) if size.isdecimal() else size for size in found]
    return found


def _number(value: object) -> object:
    """A factor from what models write for one: '1.5x', or the lower end of '1.2-1.5x'."""
    found = _FACTOR.fullmatch(value.strip()) if isinstance(value, str) else None
    return found[1] if found else value


Words = Annotated[list[str], BeforeValidator(_words)]
Sizes = Annotated[list[int | str], BeforeValidator(_sizes)]
Factor = Annotated[float, Field(ge=0), BeforeValidator(_number)]


def first_error(error: ValidationError) -> str:
    """The first field that does not fit its form: which, why, and what was found there."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] == "missing" else f", found {textwrap.shorten(repr(first['input']), 80)}"
    return f"{where}: {first['msg']}{found}" if where else f"{first['msg']}{found}"
