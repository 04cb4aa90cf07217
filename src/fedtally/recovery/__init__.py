"""From sums of sketches to estimates."""
