"""Secure summation, sans-IO: from bytes to bytes, without sockets, clock or randomness of its own."""
