"""A Spark data frame, counted in local mode, gives the answer of the whole table."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("needs Java", allow_module_level=True)

from pyspark.sql import SparkSession

import fedtally
from fedtally.errors import InvalidInputError, OutsideDomainError
from fedtally.simulation.dataframe.spark import tally_spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of sockets between Python and Java
]
WORDS = [f"w{i}" for i in range(40)]
SKETCH = {"rows": 3, "width": 64, "seed": 7}
OF_TABLE = ("item", "client", "round", "count")


def table(size=900):
    rng = np.random.default_rng(1)
    return pa.table(
        {
            "the.word": rng.choice(WORDS, size),  # a dot is part of the name
            "user": [None if i == 5 else f"u{i}" for i in rng.integers(0, 90, size)],
            "day": [str(i) for i in rng.integers(8, 12, size)],
            "n": rng.integers(0, 4, size),
        }
    )


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # of the workers: else the first on PATH
    pq.write_table(table(), folder / "t.parquet", row_group_size=100)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.shuffle.partitions", "5")
        .config("spark.sql.adaptive.coalescePartitions.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    yield session, str(folder / "t.parquet")
    session.stop()
    monkeypatch.undo()


@pytest.fixture
def frame(session):
    session, path = session
    return session.read.parquet(path).repartition(3)


CASES = {
    "rows": {"item": "the.word", "num_rounds": 3},
    "natural rounds, counts": {"item": "the.word", "round": "day", "count": "n"},
    "clients of several items": {"item": "the.word", "client": "user", "max_items": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_executors_give_the_answer_of_the_whole_table(frame, name):
    asked = CASES[name]
    tally = tally_spark(frame, seed=7, **asked)
    campaign = {key: asked[key] for key in asked if key not in OF_TABLE}
    found = fedtally.estimate(tally, **campaign, **SKETCH, evaluate=True)
    whole = fedtally.estimate(table(), **asked, **SKETCH, evaluate=True)
    for one, other in zip(found.sketches, whole.sketches, strict=True):
        assert one.counters.tolist() == other.counters.tolist()
        assert one.num_clients == other.num_clients
    assert found.domain == whole.domain
    assert found.truth.counts.tolist() == whole.truth.counts.tolist()
    assert (found.warnings, found.missing, found.draw, found.columns) == (
        whole.warnings, whole.missing, whole.draw, whole.columns
    )  # fmt: skip


def test_clients_lie_in_several_partitions_without_the_shuffle(frame, monkeypatch):
    """Which is what the shuffle is for: the same frame is refused where it does nothing."""
    monkeypatch.setattr(type(frame), "repartition", lambda frame, *_: frame)
    with pytest.raises(InvalidInputError, match="a client is in two partitions"):
        tally_spark(frame, seed=7, **CASES["clients of several items"])


def test_an_error_says_which_partition_and_what_to_do(frame):
    with pytest.raises(OutsideDomainError, match=r"partition \d of the frame: \d+ of .*outside"):
        tally_spark(frame, item="the.word", domain=WORDS[:9], seed=7)


def test_a_frame_without_rows(frame):
    tally = tally_spark(frame.limit(0), item="the.word", seed=7)
    with pytest.raises(InvalidInputError, match="is empty: it has no rows"):
        fedtally.estimate(tally, **SKETCH)


def test_wrong_options_and_frames(frame):
    with pytest.raises(InvalidInputError, match="no column 'wrd'"):
        tally_spark(frame, item="wrd", seed=7)
    with pytest.raises(InvalidInputError, match="seed must be given"):
        tally_spark(frame, item="the.word")
    with pytest.raises(InvalidInputError, match="must be a Spark data frame, got Table"):
        tally_spark(table(), item="the.word", seed=7)
    with pytest.raises(InvalidInputError, match=r"pass frame.toArrow\(\)"):
        fedtally.estimate(frame, item="the.word")


@pytest.mark.project
def test_the_example_of_the_library_runs(session, tmp_path):
    """The block of docs/library.md, on a folder of Parquet files."""
    page = Path(__file__).parents[2] / "docs" / "library.md"
    block = re.search(r"```python\n(from pyspark.*?)```", page.read_text("utf-8"), re.DOTALL)
    rows = table().rename_columns(["url", "user", "day", "n"])
    (tmp_path / "visits").mkdir()
    for number in range(3):
        pq.write_table(rows.slice(300 * number, 300), tmp_path / "visits" / f"{number}.parquet")
    found = {}
    exec(block[1].replace("visits/", f"{tmp_path}/visits"), found)  # Java has a folder of its own
    whole = fedtally.estimate(rows, item="url", client="user", max_items=5, num_rounds=10, seed=7)
    assert found["result"].top(20) == whole.top(20)


def test_one_client_of_two_spellings_is_in_one_partition(session):
    """The shuffle looks at the text: without a common spelling it would part 7 and 7.0."""
    people = [f"{n}{end}" for n in range(150) for end in ("", ".0", ".00")]
    frame = session[0].createDataFrame([(user, "tea") for user in people], ["user", "word"])
    tally = tally_spark(frame.repartition(6), item="word", client="user", seed=7)
    assert fedtally.estimate(tally, seed=7).num_clients == 150
