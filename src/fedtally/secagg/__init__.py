"""Secure summation, sans-IO: bytes to bytes, without sockets, clock or randomness of its own."""
