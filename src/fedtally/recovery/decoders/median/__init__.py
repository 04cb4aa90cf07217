"""The paper's decoder: the median over rows."""
