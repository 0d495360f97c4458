"""How models write tool calls, and how they are read. What a model wrote is parsed, never evaluated."""

from prorl.llm.toolformats.base import ParsedReply, ToolFormat, function_form
from prorl.llm.toolformats.choosing import choose, formats, taught_by
from prorl.llm.toolformats.hermes import HermesFormat

__all__ = ["HermesFormat", "ParsedReply", "ToolFormat", "choose", "formats", "function_form", "taught_by"]
