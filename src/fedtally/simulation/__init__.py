"""A whole campaign in one process, every client simulated."""
