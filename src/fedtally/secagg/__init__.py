"""Secure summation without input or output: from bytes to bytes, no sockets, clock or randomness of its own."""
