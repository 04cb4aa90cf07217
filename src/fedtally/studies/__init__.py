"""Studies: they simulate many campaigns to test what a plan promises and guarantees."""
