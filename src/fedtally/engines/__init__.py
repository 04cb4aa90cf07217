"""Engines: they simulate campaigns, or count tables where these lie."""
