"""Sum vectors securely, sans-IO: bytes in, bytes out, without sockets, clock or randomness."""
