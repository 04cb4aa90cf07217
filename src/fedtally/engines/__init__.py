"""Engines: they run campaigns, or count tables where these lie."""
