"""ProRL Agent: rollouts of LLM agents as a service.

A trainer hands a task to an HTTP server and gets back a finished, scored, token-exact trajectory.
"""
