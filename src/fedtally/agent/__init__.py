"""The agent: the process on a client's machine that guards its items, keys and record."""
