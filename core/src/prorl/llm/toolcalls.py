"""The former place of :mod:`prorl.llm.toolformats`."""

from prorl.llm.toolformats import HermesFormat, ParsedReply, ToolFormat, function_form

__all__ = ["HermesFormat", "ParsedReply", "ToolFormat", "function_form"]
