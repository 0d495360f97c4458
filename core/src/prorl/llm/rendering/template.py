"""A chat template, compiled as transformers compiles it: Jinja in a sandbox, with the same extras.

What it may see is fixed by its variables, its messages and the moment given to :meth:`ChatTemplate.render`, so one
conversation renders the same way from its first turn to its last, midnight included.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prorl.api.errors import ModelFault, TaskFault
from prorl.llm.toolformats.base import TemplateRefusal

# What rendering itself hands to a template; no job may set it.
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception")
_MAKES_TAGS = re.compile(r"""<\\?/?['"]\s*[~+]|<\{\{""")
_THINKING = ("enable_thinking", "thinking")  # Qwen3 and many others; DeepSeek V3.1


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: marks the assistant's text for trainers that re-encode; here it only must not disturb."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class ChatTemplate:
    """``variables`` are the special tokens that the template may name. What a job chooses is added by
    :meth:`switched`."""

    def __init__(self, source: str, *, variables: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.variables = dict(variables or {})
        self.chosen: Mapping[str, Any] = {}
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        try:
            tree = environment.parse(source)
            self._names = jinja2.meta.find_undeclared_variables(tree)
            self.switches = frozenset(self._names - _own_names(tree) - {*_RESERVED, *self.variables})
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFault(f"the chat template does not compile: {error}", code="template") from error
        if "bos_token" in self._names and "bos_token" not in self.variables:
            raise ModelFault(
                "the chat template needs a bos_token that the engine does not name; "
                "register the backend with a tokenizer folder or hub name",
                code="template",
            )

    def switched(self, *, thinking: bool | None = None, variables: Mapping[str, Any] | None = None) -> ChatTemplate:
        """This template with a job's choices. Raises ``TaskFault`` (code ``rendering``) for what it does not know:
        a switch that does nothing would leave a whole training run with prompts that nobody asked for."""
        chosen = dict(variables or {})
        for name in chosen:
            if name.startswith("_") or name in _RESERVED or name in self.variables:
                raise TaskFault(f"rendering.variables may not set {name!r}: the renderer does", code="rendering")
            if name not in self.switches:
                raise TaskFault(
                    f"the chat template knows no variable {name!r}; it knows {self._known()}", code="rendering"
                )
        if thinking is not None:
            switch = next((name for name in _THINKING if name in self.switches), None)
            if switch is None:
                raise TaskFault(
                    f"the chat template has no switch for thinking, it knows {self._known()}; leave "
                    "rendering.thinking out, or set the template's own variable in rendering.variables",
                    code="rendering",
                )
            if chosen.setdefault(switch, thinking) is not thinking:
                raise TaskFault(f"rendering.thinking and rendering.variables disagree on {switch}", code="rendering")
        template = ChatTemplate(self.source, variables={**self.variables, **chosen})
        template.chosen = chosen
        return template

    @property
    def makes_tags(self) -> bool:
        """Whether words that it is given become tags: ``'<' ~ key ~ '>'``."""
        return _MAKES_TAGS.search(self.source) is not None

    def _known(self) -> str:
        return ", ".join(sorted(self.switches)) or "none"

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


def _own_names(tree: jinja2.nodes.Template) -> set[str]:
    """Names that the template sets itself without asking first whether they were given to it."""
    own = {node.name for node in tree.find_all(jinja2.nodes.Name) if node.ctx == "store"}
    asked = {
        node.node.name
        for node in tree.find_all(jinja2.nodes.Test)
        if node.name in ("defined", "undefined") and isinstance(node.node, jinja2.nodes.Name)
    }
    return own - asked


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
