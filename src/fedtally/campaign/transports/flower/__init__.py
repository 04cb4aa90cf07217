"""The engine for a Flower federation; Flower carries only the bytes of the protocol.

Only this package imports `flwr` (extra `flower`). Each SuperNode of Flower is a client. The
client's name in the driver is the number of its node, which stays the same if the node has a
registered key.
"""
