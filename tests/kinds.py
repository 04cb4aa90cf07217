"""The decoders that tests run over, and what errors say of them, from the lists of the package.

So a further decoder is tested by all of these, and none of them has to be changed for it.
"""

from __future__ import annotations

from fedtally.base.encoding import Encoding
from fedtally.options import DECODERS
from fedtally.recovery.decoders import Recovery

DECODER_NAMES = f"{', '.join(DECODERS[:-1])} or {DECODERS[-1]}"
SKETCH_DECODERS = [str(name) for name in Recovery if name.encoding is Encoding.SKETCH]
