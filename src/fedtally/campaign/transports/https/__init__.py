"""Servers and clients that talk over HTTPS; only this package imports starlette, uvicorn, httpx."""
