"""Hazard layer: thin functions for keys, HPKE, the pseudorandom generator and secret sharing.

Nothing here is a protocol. A function is safe only under the conditions in its docstring, such as a
key that is used once, or a label that is used for one purpose. The function does not check all of
these conditions. The other packages of fedtally meet these conditions: call them, such as
`fedtally.secagg`, and not this package. No other package imports the library `cryptography`.

The caller draws all secret bytes and passes them as arguments. There is one exception: `hpke` and
`hpke_aad` draw the ephemeral key of a message themselves.
"""
