"""The offline index: documents in SQLite's FTS5, searched without a network."""

from prorl_stem.index.build import build_index, read_documents, reference_index
from prorl_stem.index.store import Document, Index

__all__ = ["Document", "Index", "build_index", "read_documents", "reference_index"]
