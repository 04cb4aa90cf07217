"""Hazard layer: keys, the pseudorandom generator and secret sharing, as thin as they can be.

Nothing here is a protocol. Each function is safe only under the conditions that its docstring names
(a key used once, a label used for one purpose); `fedtally.secagg` keeps them. Use that, not this.
The library `cryptography` is imported only in this package.

No randomness is drawn here: secret bytes are arguments.
"""
