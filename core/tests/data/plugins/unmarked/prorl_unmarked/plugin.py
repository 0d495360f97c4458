def prorl_agent_handlers():
    return []
