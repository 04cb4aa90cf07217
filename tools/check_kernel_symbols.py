"""Check that each kernel unit exports its one table, and nothing that the linker could merge.

    python tools/check_kernel_symbols.py BUILD_FOLDER

Looks at the object files kernels_*.o below the folder with `nm`. A weak or global symbol beside the
table, such as an instantiated template of the standard library, could be resolved to code for a
newer processor than the host's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def exported(unit: Path) -> list[str]:
    """Return the symbols of an object file that are defined and not local, demangled."""
    command = ["nm", "-C", "--defined-only", str(unit)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    return [name for _, kind, name in rows if kind.isupper() or kind in "uvw"]


def main() -> int:
    """Check every unit."""
    units = sorted(Path(sys.argv[1]).rglob("kernels_*.cpp.o"))
    if not units:
        print(f"no kernel units below {sys.argv[1]}: was the build pure?", file=sys.stderr)
        return 1
    failures = 0
    for unit in units:
        table = f"fedtally::{unit.name.removesuffix('.cpp.o')}"
        found = exported(unit)
        failures += found != [table]
        print(
            f"{unit.name}: {', '.join(found)}"
            + ("" if found == [table] else f"   expected only {table}")
        )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
