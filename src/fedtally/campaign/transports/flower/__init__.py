"""A campaign on a Flower federation: Flower carries the bytes, and decides nothing.

Only this package imports `flwr` (extra `flower`). A SuperNode is a client. Its name in the driver
is the number of its node, which stays the same where the node has a registered key.
"""
