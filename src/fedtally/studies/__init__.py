"""Studies: they run campaigns again and again, and ask whether what was planned and guaranteed was true."""
