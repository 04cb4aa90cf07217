"""Transports: what carries the frames of a campaign between its driver and its clients."""
