"""Studies simulate many campaigns, to test what a plan promises about errors and privacy."""
