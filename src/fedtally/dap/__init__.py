"""The Distributed Aggregation Protocol (DAP), the standard of sums by two servers. Sans-IO.

- `presentation`: the language that its messages are written in
- `draft18`: the messages of draft-ietf-ppm-dap-18, and the names of the version

The modules have no input, output or clock.
"""
