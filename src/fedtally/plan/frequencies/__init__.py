"""What is known of the frequencies: known, assumed, read from a pilot, or the hardest ones."""
