"""Engines that run a campaign: so far one, which runs a whole campaign in one process."""
