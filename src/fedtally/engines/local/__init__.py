"""The local engine: a whole campaign in one process, every client simulated."""
