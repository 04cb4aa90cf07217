"""What runs a campaign: here, a whole campaign in one process."""
