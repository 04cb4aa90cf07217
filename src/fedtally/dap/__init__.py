"""The Distributed Aggregation Protocol (DAP), the standard of sums by two servers. Sans-IO.

Clients of any maker report measurements, without an identity. Two servers verify the reports and
add them up, and a collector learns the sum of a batch. The batches are intervals of time.

- `presentation`: the language that its messages are written in
- `draft18`: the messages of draft-ietf-ppm-dap-18, and the names of the version
- `task`: what all parties agree on, in a public and a secret file
- `sealing`: keys with numbers
- `client`: a report of a measurement
- `aggregator`: what both servers do alike; `leader`, `helper`: what they do each
- `state`: what a server keeps, and a store in memory
- `problems`: the errors of the draft
- `collector`: a query, and its result

The modules have no input, output or clock. A server object is for one thread at a time.
"""
