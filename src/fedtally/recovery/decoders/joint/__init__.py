"""Joint recovery: all heavy items are fitted together."""
