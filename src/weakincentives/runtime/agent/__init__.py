"""The loop for AI agents: it turns requests into results with a prompt and an adapter."""
