"""A chat template, compiled as transformers compiles it: Jinja in a sandbox, with the same extras.

What it may see is fixed by its variables, its messages and the moment given to :meth:`ChatTemplate.render`, so one
conversation renders the same way from its first turn to its last, midnight included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prorl.api.errors import ModelFault


class TemplateRefusal(Exception):  # noqa: N818 - not an error: some templates take no system message, for instance
    """The template will not render these messages; the text says why, in the template's own words where it has any."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: marks the assistant's text for trainers that re-encode; here it only must not disturb."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """``variables`` are the special tokens and switches (``enable_thinking``) that the template may name."""

    def __init__(self, source: str, *, variables: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.variables = dict(variables or {})
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        try:
            self._names = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFault(f"the chat template does not compile: {error}", code="template") from error
        if "bos_token" in self._names and "bos_token" not in self.variables:
            raise ModelFault(
                "the chat template needs a bos_token that the engine does not name; "
                "register the backend with a tokenizer folder or hub name",
                code="template",
            )

    @property
    def uses_date(self) -> bool:
        return "strftime_now" in self._names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime,
        generation_prompt: bool = True,
    ) -> str:
        """Raises :class:`TemplateRefusal` when the template raises, or trips over a message it was not made for."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                strftime_now=now.strftime,
                **self.variables,
            )
        except Exception as error:
            raise TemplateRefusal(str(error) or type(error).__name__) from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
