"""Campaigns over HTTPS; only this package imports starlette, uvicorn and httpx."""
