"""Studies run campaigns again and again, to test what was planned and guaranteed."""
