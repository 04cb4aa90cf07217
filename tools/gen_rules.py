"""Write the table of docs/troubleshooting.md: what people may ask together.

    python tools/gen_rules.py          # rewrites what stands between the page's markers
    python tools/gen_rules.py --check  # writes nothing; exits 1 where the page differs

The rows are those of `RULES` in src/fedtally/plan/rules.py, in their order.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from fedtally.errors import flag, render
from fedtally.plan.rules import RULES, Rule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md"
MARKERS = re.compile(r"(<!-- generated: rules -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ("Option", "Rule", "Why", "Way out")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    asked = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    new = generate(page)
    if asked.check and new != page:
        print(f"{PAGE.name} is not what the code says; run python tools/gen_rules.py")
        return 1
    if not asked.check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


def generate(page: str) -> str:
    """Return the page with the table of today's rules."""
    rows = [HEAD, ("---",) * len(HEAD), *map(row, RULES)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    found, number = MARKERS.subn(lambda markers: f"{markers[1]}{table}{markers[2]}", page)
    if number != 1:
        raise ValueError(f"{PAGE.name} must have one pair of markers, got {number}")
    return found


def row(rule: Rule) -> tuple[str, ...]:
    """Return the cells of a rule."""
    values = [f" {value}" for value in rule.values] or [""]
    options = [f"`{flag(option)}{value}`" for option in rule.options for value in values]
    return (
        ", ".join(options),
        words(rule.need.value.format("it")),
        words(rule.because),
        words(rule.way.format("it")),
    )


def words(text: str) -> str:
    """Return a text of a rule as a cell: options and commands as code, a capital letter first."""
    said = render(text, for_="shell")
    code = r"(?:fedtally [a-z]+(?: --[a-z-]+)*|--[a-z-]+)(?: (?:open|secagg|ideal|N)\b)?"
    said = re.sub(code, lambda found: f"`{found[0]}`", said)
    return said[:1].upper() + said[1:]


if __name__ == "__main__":
    sys.exit(main())
