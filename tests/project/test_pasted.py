"""Every shell and Python block of the README and of docs/ is pasted, page by page and in order.

They are pasted into an empty folder that holds the files of `fedtally sample`.

A block of `sh` is pasted as it stands and must succeed. A block whose lines begin with `$ ` also
shows what is printed, which is compared: `...` stands for anything, as in doctests. Where the
line before it ends with `<!-- noised -->`, digits and bars are left out of that. A block that
follows a line ending in "into `NAME`:" is written to that file, and other Python is run. Examples
with `>>>` are those of tests/project/test_docs.py.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from experiments.__main__ import main as experiments

from fedtally.cli.app import cli
from fedtally.cli.app import run as fedtally
from fedtally.cli.help import Command
from fedtally.sources.sample_tables import sample

pytestmark = pytest.mark.usefixtures("errors_once")
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])

# What is not pasted: (page, how the line begins) -> why. A line of a block, or its first line for
# all of it. A reason that fits no line fails.
_MINUTES = "takes minutes or hours; a quick run of each is tested in tests/project"
_OTHERS = "needs files of the registrar and the server: examples/local/run.sh has them, in .ci/run"
_DAP = "needs both servers and nginx: examples/dap/run.sh has them, in .ci/run"
_NODE = "needs Node.js and npm: .ci/web has them"
_AGENTS = "starts processes: test_the_campaign_of_a_page_runs_on_one_machine has them in one shell"
_FIRST = "needs the key and the campaign of docs/private.md, which is run"
_GIVEN_UP = "needs a service and its user: tests/unit/test_aggregate_folder.py"
NOT_PASTED = {
    ("README.md", "python3 -m venv .venv && "): "installs the package: .ci/run does it first",
    ("README.md", "python3 -m venv .venv-test"): "runs these very tests: .ci/run does it",
    ("docs/agent.md", "fedtally keys prove"): _OTHERS,
    ("docs/agent.md", "fedtally agent accept"): _OTHERS,
    ("docs/agent.md", "fedtally agent run"): _OTHERS,
    ("docs/agent.md", "fedtally agent report"): "needs both servers: examples/two_servers/run.sh",
    ("docs/evidence.md", "python -m pytest"): "tests of this repository: .ci/run has them",
    ("docs/evidence.md", "grep -o"): "tests of this repository: .ci/run has them",
    ("docs/evidence.md", "python -m"): _MINUTES,
    ("docs/evidence.md", "python tools/fuzz_secagg.py"): _MINUTES,
    ("docs/evidence.md", "pip "): "needs an environment of its own",
    ("docs/troubleshooting.md", "sudo -u fedtally fedtally aggregate helper"): _GIVEN_UP,
    (
        "docs/troubleshooting.md",
        "sudo -u fedtally fedtally campaign drain",
    ): "needs a server that systemd runs: examples/https/run.sh",
    ("docs/troubleshooting.md", "systemctl enable"): _GIVEN_UP,
    ("docs/troubleshooting.md", "podman"): "needs Podman: test_https_processes.py has the entry",
    ("docs/plan.md", "fedtally campaign"): "takes days: tests/system/test_calendar_days.py",
    ("docs/evidence.md", "python tools/conformance.py"): "asks a program of yours",
    ("docs/evidence.md", "cd clients/web"): _NODE,
    ("docs/evidence.md", "python tools/constant_time.py"): "needs valgrind: .ci/run has it",
    ("docs/dap.md", "fedtally dap helper run"): _DAP,
    ("docs/dap.md", "fedtally dap leader run"): _DAP,
    ("docs/dap.md", "fedtally dap leader nginx"): _DAP,
    ("docs/dap.md", "fedtally dap report"): _DAP,
    ("docs/dap.md", "fedtally dap collect"): _DAP,
    ("docs/dap.md", "fedtally report"): _DAP,
    ("docs/dap.md", "docker"): "it needs Docker, and builds images for minutes",
    ("docs/dap.md", "in_python"): "it needs Docker",
    ("docs/accounting.md", "python"): _MINUTES,
    ("docs/accounting.md", "sudo -u fedtally"): "tests/system/test_ledger_copies.py runs it",
    ("docs/accounting.md", "sudo -u postgres"): "tests/system/test_ledger_copies.py runs it",
    ("docs/accuracy.md", "python -m"): _MINUTES,
    ("docs/deploying.md", "fedtally campaign"): _FIRST,
    ("docs/deploying.md", "fedtally plan --clients 7"): _FIRST,
    ("docs/private.md", "bash clients.sh"): _AGENTS,
    ("docs/private.md", "fedtally campaign run"): _AGENTS,
    ("docs/private.md", "kill %1"): _AGENTS,
    ("docs/plan.md", "python -m"): _MINUTES,
    ("docs/plan.md", "python -m experiments"): _MINUTES,
    ("docs/evidence.md", "git clone"): "an address of nobody",
    ("docs/evidence.md", "git log"): "needs a clone, and runs in an empty folder",
    ("docs/evidence.md", "python tools/release.py"): _MINUTES,
    ("docs/evidence.md", "python tools/stranger.py"): "needs a release",
    ("docs/evidence.md", "sha256sum"): "needs a release",
    ("docs/operations.md", ""): "needs a server that systemd runs: examples/https/run.sh",
    ("docs/serving.md", ""): "needs a server: examples/https/run.sh has it",
    ("docs/two-servers.md", ""): "needs two servers: examples/two_servers/run.sh has them",
    ("docs/glossary.md", "python3 -m venv"): "installs the package: .ci/run does it",
    ("docs/glossary.md", "pip"): "needs an environment of its own, and downloads",
    ("docs/glossary.md", "sqlite3"): "names a database of yours",
    ("docs/glossary.md", "fedtally estimate poll.csv"): "names a table of yours",
    ("docs/glossary.md", "sudo -u fedtally-agent"): "needs an agent as a service",
    ("docs/glossary.md", "python -m"): "runs tests or for minutes: docs/evidence.md has the same",
    ("docs/glossary.md", "grep -o"): "tests of this repository: .ci/run has them",
    ("docs/glossary.md", "git log"): "needs a clone, and runs in an empty folder",
    ("docs/flower.md", ""): "needs a federation: examples/flower/run.sh has it",
    ("docs/library.md", "cd clients/web"): _NODE,
    ("docs/library.md", "npm"): _NODE,
    ("docs/library.md", "node"): _NODE,
    ("docs/library.md", "python examples/web"): _NODE,
    ("docs/evidence.md", "chromium"): "needs a browser: tests/system/test_report_browser.py",
    ("docs/index.md", "python3 -m venv"): "installs the package: .ci/run does it",
    ("docs/library.md", "import dask"): "needs a Dask cluster: tests/system/test_dask.py has one",
    ("docs/library.md", "from pyspark"): "needs Spark: tests/system/test_spark.py has it",
    ("docs/library.md", "pip install"): "needs an environment of its own: .ci/light has it",
    ("docs/open-domain.md", "python -m"): _MINUTES,
    ("docs/library.md", "import secrets, time"): "needs a plan: tests/system/test_driver.py",
    ("docs/start.md", "python3 -m venv"): "installs the package: .ci/run does it",
    ("docs/start.md", "fedtally demo"): "compared in test_demo_quoted.py",
}

# What is pasted with smaller figures, since it would take minutes: what it prints is not compared.
SMALLER: dict[str, list[tuple[str, str]]] = {
    "docs/start.md": [
        ("zipf:d=100000,n=2000 --max-bytes", "zipf:d=100000,n=60 --max-bytes"),
        ("zipf:d=100000,n=150 ", "zipf:d=100000,n=20 "),
        ("zipf:d=1000,n=500 ", "zipf:d=1000,n=120 "),
        ("--rounds 10 --recovery median", "--rounds 2 --recovery median"),
        ("--width 200,1000", "--width 200 --repeats 2"),
        ("--repeats 20", "--repeats 2"),
    ],
    "docs/glossary.md": [
        ("zipf:d=100000,n=2000 --max-bytes", "zipf:d=100000,n=60 --max-bytes"),
        ("secagg --dropout 0.02", "secagg --dropout 0.02 --max-cohort 100"),
        ("--domain open --epsilon 1 --max-bytes 512kB", "--domain open --epsilon 1 --confidence 0"),
    ],
    "docs/library.md": [("--quick", "--quick -a 2 --width 100 --repeats 2 --no-plot")],
    "docs/deploying.md": [("secagg --dropout 0.02", "secagg --dropout 0.02 --max-cohort 100")],
    "docs/evidence.md": [("--repeats 10", "--repeats 1")],
    # bounds of 2^26 hashes take longer than the hashes and their names
    "docs/open-domain.md": [("dictionary.txt --ep", "dictionary.txt --confidence 0 --ep")],
    "docs/planning.md": [
        ("plan.toml zipf:a=1.1,d=100000,n=1000000", "plan.toml zipf:d=100000,n=1e6 --repeats 1"),
        ("d=100000,n=1000000 --rounds 10 --tau 0.001", "d=10000,n=100000 --rounds 10 --tau 0.01"),
        (  # a page plans dozens of sizes
            (
                "--clients 1000000 --domain-size 100000 --rounds 10 --tau 0.001 --epsilon 1"
                " --secure-sum secagg --report"
            ),
            (
                "--clients 20000 --domain-size 200 --rounds 2 --tau 0.02 --epsilon 1"
                " --secure-sum secagg --report"
            ),
        ),
    ],
    "docs/plan.md": [
        ("--repeats 100", "--repeats 1"),
        ("short.toml zipf:a=1.1,d=10000", "short.toml zipf:a=1.1,d=10000 --repeats 2"),
        ("range:1..175000 --seed 1", "range:1..175000 --seed 1 --repeats 1"),
        ("d=1000000,n=5000000 --seed 1", "d=1000000,n=5000000 --seed 1 --repeats 1"),
    ],
    "docs/accounting.md": [("audit small.toml", "audit small.toml --campaigns 20")],
    "docs/privacy.md": [
        ("--methods hybrid,batched:3,shared --seed", "--methods hybrid --repeats 1 --seed"),
        ("zipf:d=1000,n=500 ", "zipf:d=1000,n=120 "),
    ],
    "docs/threat-model.md": [("n=3000", "n=900"), ("--max-cohort 200", "--max-cohort 60")],
}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    name: str  # of the file that it is put into, or ""
    text: str
    is_noised: bool = False


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    # a directive of the site, such as `{image} PATH`, has a name in braces and an argument
    pattern = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    for found in pattern.finditer(text):
        indent, language, body = found.groups()
        before = text[: found.start()].rstrip().rsplit("\n", 1)[-1]
        name = re.search(r"into `([\w./-]+)`:$", before)
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        number = text[: found.start()].count("\n") + 2
        yield Block(
            page.relative_to(ROOT).as_posix(),
            number,
            language,
            name.group(1) if name else "",
            "".join(lines),
            before.endswith("<!-- noised -->"),
        )


def is_transcript(block: Block) -> bool:
    return block.text.startswith("$ ")


def is_pasted(block: Block) -> bool:
    return (
        block.language == "sh"
        or is_transcript(block)
        or bool(block.name)
        or (block.language == "python" and not block.text.startswith(">>>"))
    )


@cache
def pasted(page: Path) -> list[Block]:
    return [block for block in blocks(page) if is_pasted(block)]


def reason(block: Block, line: str) -> str | None:
    """Say why a line, or the block that begins with it, is not pasted."""
    for (page, start), why in NOT_PASTED.items():
        if page == block.page and line.startswith(start):
            return why
    return None


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a block, each with what it shows: None if nothing is shown."""
    if not is_transcript(block):
        for line in re.sub(r"\\\n *", "", block.text).splitlines():
            if line and not line.startswith("#"):
                yield line, None
        return
    for part in re.split(r"^\$ ", re.sub(r"\\\n *", "", block.text), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown or None


def world(page: Path, folder: Path) -> dict[str, str]:
    """Make the folder, and return the environment of the commands."""
    if "\nfedtally sample .\n" not in page.read_text(encoding="utf-8"):  # else the page does it
        for name, content in sample().items():
            (folder / name).write_bytes(content)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return kept | {
        "PATH": path,
        "COLUMNS": "80",
        "FEDTALLY_NUM_THREADS": "1",
        "HOME": str(folder),
        "NO_COLOR": "1",
        "XDG_CACHE_HOME": str(folder / ".cache"),
        "PYTHONPATH": str(ROOT),  # as in a clone: for the experiments, which are not installed
    }


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout


def run_line(line: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a line of a shell; a command of fedtally alone in this process, which has loaded it."""
    if not re.match(r"fedtally [^|&;<>*?$]*$", line):
        return run(["bash", "-o", "pipefail", "-c", line], folder, environment)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedtally", *shlex.split(line, comments=True)[1:]])
        for name, value in environment.items():
            patch.setenv(name, value)
        printed = io.StringIO()  # both streams in one, as a terminal shows them
        with redirect_stdout(printed), redirect_stderr(printed):
            return fedtally(sys.argv[1:]), printed.getvalue()


def same(shown: str, printed: str) -> bool:
    """Whether the output is what is shown, but for blanks at the ends of lines and around all."""
    shown, printed = (
        "".join(f"{line.rstrip()}\n" for line in text.strip().splitlines())
        for text in (shown, printed)
    )
    pattern = ""
    for line in shown.splitlines():
        if line == "...":
            pattern += r"(?:.*\n)*"  # any number of lines, also none
        else:
            pattern += ".*".join(map(re.escape, line.split("..."))) + r"\n"
    return re.fullmatch(pattern, printed) is not None


def skeleton(text: str) -> str:
    """Return an output without digits, bars and the width of columns: what noise changes."""
    return re.sub(r" +", " ", re.sub(r"[0-9]+|[█▉-▏]+", "", text))


def expected_codes(shown: str | None) -> tuple[int, ...]:
    """The codes that a command may exit with: an error is shown, or a target that is missed."""
    if shown is not None and shown.startswith("error: "):
        return (2,)
    # few repeats of a plan may miss its target, or meet it where all repeats together do not
    return (0, 1) if shown is not None and "\nTarget " in shown else (0,)


@pytest.mark.promise
@pytest.mark.parametrize(
    "page", [page for page in PAGES if pasted(page)], ids=lambda page: page.stem
)
def test_the_blocks_of_a_page_can_be_pasted(page: Path, tmp_path: Path) -> None:
    environment = world(page, tmp_path)
    for block in pasted(page):
        where = f"{block.page}:{block.line}"
        if block.name:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not is_transcript(block):
            if reason(block, block.text.splitlines()[0]) is None:
                code, printed = run([sys.executable, "-c", block.text], tmp_path, environment)
                assert code == 0, f"{where}\n{printed}"
        else:
            for command, shown in commands(block):
                if reason(block, command) is not None:
                    continue
                smaller = command
                for text, less in SMALLER.get(block.page, ()):
                    smaller = smaller.replace(text, less)
                code, printed = run_line(smaller, tmp_path, environment)
                assert code in expected_codes(shown), f"{where}: {command}\n{printed}"
                if shown is not None and smaller == command:
                    if block.is_noised:
                        shown, printed = skeleton(shown), skeleton(printed)
                    assert same(shown, printed), f"{where}: {command}\n{printed}"


def test_the_campaign_of_a_page_runs_on_one_machine(tmp_path: Path) -> None:
    """With four of its seven clients, which then accept two honest ones."""
    page = ROOT / "docs" / "private.md"
    section = "".join(f"{block.text}\n" for block in pasted(page) if not block.name)
    section = section[section.index("fedtally keys new server") : section.index("kill %1")]
    script = next(block.text for block in pasted(page) if block.name == "clients.sh")
    fewer = ("dan eva finn gus", "dan"), ("min_honest = 5", "min_honest = 2")
    for old, new in (
        *fewer,
        ("--clients 7", "--clients 4"),
        ("--cohort 7 --cohort-min 7", "--cohort 4 --cohort-min 4"),
    ):
        assert (old in script) != (old in section)
        script, section = script.replace(old, new), section.replace(old, new)
    (tmp_path / "clients.sh").write_text(script)
    with (tmp_path / "out").open("w+") as printed:
        shell = subprocess.Popen(
            ["bash", "-ec", f"{section}\nkill %1; wait"],
            cwd=tmp_path,
            env=world(page, tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(120)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(shell.pid, signal.SIGKILL)
        printed.seek(0)
        shown = printed.read()
    shown += (tmp_path / "clients.log").read_text()
    assert re.search(r"^1 +3 +75.00 %", shown, re.M), shown  # ada, ben and dan
    assert re.search(r"^2 +4 +25.00 %", shown, re.M), shown  # cleo


# What is run with smaller figures, as in SMALLER.
SMALLER_EXAMPLES = [
    # names are read in a minute: tests/unit/test_open_domain.py reads fewer
    (
        r"--domain open --epsilon 1( --dictionary dictionary.txt)?",
        "--domain dictionary.txt --epsilon 1",
    ),
    (r"zipf:a=1.1,d=100000,n=150000", "zipf:d=900,n=900"),
    (r"zipf:(a=1.3|n=2000|d=1000,n=2000|)(?= )", "zipf:d=300,n=300"),
    (r"--clients 1000000 --domain-size 100000", "--clients 20000 --domain-size 2000"),
    (
        r"--clients 500000 --like profile:gowalla-us --tau 0.001",
        "--clients 500000 --like profile:gowalla-us --tau 0.01",
    ),
    (r"--repeats \d+", "--repeats 2"),
    (r"(?<=fedtally simulate )(?!.*--repeats)", "--repeats 1 "),
    (r"--campaigns \d+", "--campaigns 20"),
    (r"audit plan.toml( --json)?$", r"audit plan.toml --campaigns 20\1"),
]


def commands_with_examples(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Command]]:
    if isinstance(command, Command) and command.examples:
        yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from commands_with_examples(one, (*path, name))


EXAMPLES = dict(commands_with_examples(cli))


def is_of_the_reader(purpose: str) -> bool:
    """Whether an example says that files of its reader are in it."""
    return re.search(r"\byours?\b", purpose) is not None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, command in EXAMPLES.items()
        if not all(is_of_the_reader(purpose) for purpose, _ in command.examples)
    ],
)
def test_the_examples_of_help_run_in_a_folder_of_samples(name: str, tmp_path: Path) -> None:
    environment = world(ROOT / "docs" / "index.md", tmp_path)
    purpose = ""
    for more, line in EXAMPLES[name].examples:
        purpose = more or purpose  # without one it goes on with the example before it
        if is_of_the_reader(purpose):
            continue
        smaller = re.sub(r" \| jq .*", "", line)  # jq is no part of the package
        for pattern, less in SMALLER_EXAMPLES:
            smaller = re.sub(pattern, less, smaller)
        code, printed = run_line(smaller, tmp_path, environment)
        # few repeats may miss a target, and few campaigns fail an audit
        assert code in ((0, 1) if "--plan" in line or name == "audit" else (0,)), (
            f"{line}\n{printed}"
        )


def words_of(line: str) -> list[str]:
    """Return the words of a command, without its file of output and without a command after it."""
    words = shlex.split(line, comments=True)
    ends = (number for number, word in enumerate(words) if word in (">", "&&"))
    return words[: next(ends, len(words))]


def test_examples_of_a_reader_s_own_files_parse() -> None:
    parsed = 0
    for command in EXAMPLES.values():
        for _, line in command.examples:
            for part in re.split(r" (?:&&|\|) ", line):
                words = words_of(part)
                if words[0] != "fedtally":
                    continue
                one, arguments = cli, words[1:]
                while isinstance(one, click.Group):
                    one, arguments = one.commands[arguments[0]], arguments[1:]
                with one.make_context("example", list(arguments)):
                    parsed += 1
    assert parsed > 50


def test_each_reason_fits_a_line() -> None:
    lines = {
        (block.page, line)
        for page in PAGES
        for block in pasted(page)
        for line in [block.text.splitlines()[0], *(command for command, _ in commands(block))]
    }
    unused = [
        (page, start)
        for page, start in NOT_PASTED
        if not any(page == p and line.startswith(start) for p, line in lines)
    ]
    assert unused == []
    for page, texts in SMALLER.items():
        whole = (ROOT / page).read_text(encoding="utf-8")
        assert [text for text, _ in texts if text not in whole] == []


def test_what_is_not_pasted_parses() -> None:
    """Its names of commands and options, at least, are those that there are."""
    commands_of = {("fedtally",): cli, ("python", "-m", "experiments"): experiments}
    parsed = 0
    for page in PAGES:
        for block in pasted(page):
            for line, _ in commands(block) if block.language == "sh" else ():
                words = words_of(line)
                for start, command in commands_of.items():
                    if reason(block, line) is None or tuple(words[: len(start)]) != start:
                        continue
                    arguments = words[len(start) :]
                    while isinstance(command, click.Group) and arguments[0] != "NAME":
                        name, *arguments = arguments
                        command = command.commands[name]
                        with command.make_context(name, list(arguments)):
                            parsed += 1
    assert parsed > 10


def test_a_block_that_names_a_command_is_pasted() -> None:
    """Without a language and without `$ ` a command would not be run, and nobody would see it."""
    overlooked = [
        f"{block.page}:{block.line}"
        for page in PAGES
        for block in blocks(page)
        if not is_pasted(block) and re.search(r"^(fedtally|python|pip|flwr) ", block.text, re.M)
    ]
    assert overlooked == []


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("a\n...\n", "a\n", True),
        ("a\n...\nc\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("plan 61...\n", "plan 61ab\n", True),
        ("a  \n", "a\n", True),
        ("...\nd\n...\n", "a\nb\nc\n", False),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, fits: bool) -> None:
    assert same(shown, printed) is fits
