"""The agent: the process that guards a client's items, keys and record."""
