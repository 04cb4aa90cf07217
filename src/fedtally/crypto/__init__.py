"""Hazard layer: thin functions for keys, HPKE, the pseudorandom generator and secret sharing.

Nothing here is a protocol. Each function is safe only under the conditions in its docstring (such
as a key used once, or a label used for one purpose). `fedtally.secagg` meets these conditions: use
that package, and not this one. The library `cryptography` is imported only in this package.

Secret bytes are arguments: no function draws them itself, except the ephemeral keys in `hpke` and
`hpke_aad`.
"""
