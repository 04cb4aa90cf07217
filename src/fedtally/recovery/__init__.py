"""Estimates frequencies from the sums of clients' sketches, with intervals and predicted errors."""
