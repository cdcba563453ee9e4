"""How a chat becomes one text: by the model's own Jinja template, sandboxed, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from controller.errors import InvalidRequest


class ChatTemplate:
    """A compiled chat template. `special_tokens` are variables that it may read (`bos_token`)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template: Template | None = None
        self._broken = ""
        try:
            self._template = _environment().from_string(source, globals=dict(special_tokens))
            # Jinja would walk its chain of globals anew for each chat: 7 of 13 us.
            self._template.globals = dict(self._template.globals)
        except TemplateSyntaxError as error:
            # The model can still complete plain texts.
            self._broken = str(error)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt, with the beginning of an answer. Raises InvalidRequest.

        A template may refuse a chat (roles that do not alternate, say); then its words are passed
        on. One that cannot be compiled refuses them all. A user's text that spells a special
        token becomes that token, as in transformers.
        """
        if self._template is None:
            raise InvalidRequest(f"messages: the model's chat template is broken: {self._broken}")
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses this chat: {error}", param="messages"
            ) from None
        # The template is code from a model's folder: whatever it trips over is in the chat.
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise InvalidRequest(
                f"messages: the model's chat template cannot render this chat: {error}",
                param="messages",
            ) from None


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares this attribute as a mutable set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Replace the block by what is in it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _SafeNamespace(Namespace):
    """`namespace()` whose names cannot reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _SafeNamespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
