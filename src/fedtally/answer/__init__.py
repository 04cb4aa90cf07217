"""The answer of a campaign: estimates from the landed sums, for a terminal, JSON and HTML pages."""
