"""The agent: the process on a client's machine that holds its items, its private key and its
record.
"""
