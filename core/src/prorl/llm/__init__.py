"""Models: the pool of LLM servers, their dialects, and conversations on one token stream."""
