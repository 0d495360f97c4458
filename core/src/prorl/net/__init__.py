"""HTTP as the client and the LLM pool both need it: thousands of calls in flight. Needs httpx only."""
