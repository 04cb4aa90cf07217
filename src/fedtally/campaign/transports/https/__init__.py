"""Campaigns over HTTPS: starlette, uvicorn and httpx are imported here and nowhere else."""
