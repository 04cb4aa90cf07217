"""Transports carry the frames (messages) of a campaign between its driver and its clients."""
