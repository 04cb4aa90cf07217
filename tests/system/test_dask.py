"""A Dask data frame, counted by two worker processes, gives the answer of the whole table."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dask")

import dask
import dask.dataframe as dd
import distributed
import pandas as pd

import fedtally
from fedtally.errors import InvalidInputError, OutsideDomainError
from fedtally.simulation.dataframe import dask as engine
from fedtally.simulation.dataframe.dask import tally_dask

pytestmark = pytest.mark.dask
WORDS = [f"w{i}" for i in range(40)]
SKETCH = {"rows": 3, "width": 64, "seed": 7}
OF_TABLE = ("item", "client", "round", "count")


def table(size=900):
    """Rows whose clients lie anywhere, and a column of people that plays a part in some cases."""
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "word": rng.choice(WORDS, size),
            "user": [f"u{i}" for i in rng.integers(0, 90, size)],
            "day": [str(i) for i in rng.integers(8, 12, size)],
            "code": rng.integers(-3, 60, size),
            "n": rng.integers(0, 4, size),
            7: 7,  # a name that is no text
        }
    )


class KillOnce(distributed.WorkerPlugin):
    """Kill the first worker that has counted a partition: the tally is lost with it.

    Attributes:
        pending: a file; whoever removes it is the one.
    """

    def __init__(self, pending):
        self.pending = pending

    def transition(self, key, start, finish, **_more):
        if str(key).startswith("_count") and finish == "memory":
            try:
                os.unlink(self.pending)
            except FileNotFoundError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def living(dask_scheduler):
    return set(dask_scheduler.workers)


@pytest.fixture(scope="module")
def cluster():
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def workers(cluster):
    """Two worker processes, where Dask runs what the test asks for."""
    with cluster.as_current():
        yield cluster


CASES = {
    "rows": {"item": "word", "num_rounds": 3},
    "natural rounds, counts": {"item": "code", "round": "day", "count": "n"},
    "declared, dropped": {"item": "word", "domain": WORDS[:30], "outside": "drop"},
    "clients": {"item": "word", "client": "user", "num_rounds": 2},
    "cells": {"item": "code,day", "domain": "grid:0..90,0..90,1", "outside": "drop"},
    "clients of several items": {"item": "code", "client": "user", "max_items": 3},
}


def check(frame, asked):
    """Compare the answer with that of the whole table: sums, candidates, truth and notes."""
    tally = tally_dask(frame, seed=7, **asked)
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
    assert found.plan.fingerprint == whole.plan.fingerprint


@pytest.mark.parametrize("name", CASES)
def test_workers_give_the_answer_of_the_whole_table(workers, name):
    check(dd.from_pandas(table(), npartitions=3), CASES[name])


@pytest.mark.parametrize("number", [1, 9])  # 9: more than one task adds up
def test_the_number_of_partitions_does_not_matter(workers, number):
    for name in ("rows", "clients"):
        check(dd.from_pandas(table(), npartitions=number), CASES[name])


@pytest.mark.parametrize("name", ["rows", "clients of several items"])
def test_a_killed_worker_changes_nothing(workers, tmp_path, name):
    pending = tmp_path / "pending"
    pending.touch()
    before = workers.run_on_scheduler(living)
    workers.register_plugin(KillOnce(str(pending)), name="kill")
    check(dd.from_pandas(table(), npartitions=4), CASES[name])
    assert not pending.exists()
    assert len(before - workers.run_on_scheduler(living)) == 1
    workers.unregister_worker_plugin("kill")


def test_clients_lie_in_several_partitions_without_the_shuffle(workers, monkeypatch):
    """Which is what the shuffle is for: the same frame is refused where it does nothing."""
    monkeypatch.setattr(dd.DataFrame, "shuffle", lambda frame, on: frame)
    with pytest.raises(InvalidInputError, match="a client is in two partitions"):
        check(dd.from_pandas(table(), npartitions=3), CASES["clients"])


@pytest.mark.parametrize("client", [None, "user"])
def test_a_private_campaign(workers, client):
    """Without clients it is warned of the column that looks like them, though it was not moved."""
    domain, frame = WORDS[:20], dd.from_pandas(table(), npartitions=4)
    privacy = {"epsilon": 2.0, "not_private": True, "domain": domain}
    asked = {"item": "word", "client": client}
    tally = tally_dask(frame, domain=domain, private=True, seed=7, **asked)
    found = fedtally.estimate(tally, **privacy, **SKETCH)  # with a seed, which draws the noise, too
    whole = fedtally.estimate(table(), **asked, **privacy, **SKETCH)
    assert found.estimates(domain) == whole.estimates(domain)
    assert found.num_clients == whole.num_clients
    assert found.warnings == whole.warnings
    assert any("'user' looks like one" in each for each in found.warnings) == (client is None)


def test_an_error_on_a_worker_says_which_partition_and_what_to_do(workers):
    frame = dd.from_pandas(table(), npartitions=3)
    with pytest.raises(OutsideDomainError, match=r"partition \d of the frame: \d+ of .*outside"):
        tally_dask(frame, item="word", domain=WORDS[:9], seed=7)
    with pytest.raises(OutsideDomainError, match="frame, shuffled by user: .* use domain='input'"):
        tally_dask(frame, item="word", client="user", domain=WORDS[:9], seed=7)


def no_disk(_part):
    raise OSError("no such disk")


def test_an_error_of_reading_arrives_as_it_is(workers):
    frame = dd.from_pandas(table(), npartitions=3)
    frame = frame.map_partitions(no_disk, meta=frame._meta)
    for asked in ({}, {"client": "user"}):
        with pytest.raises(OSError, match="no such disk"):
            tally_dask(frame, item="word", seed=7, **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"item": "wrd"}, "the frame has no column 'wrd'; .* did you mean 'word'"),
        ({"item": None}, r"which column is the item\? .* \(item=\)"),
        ({"seed": None}, "seed must be given"),
        ({"client": "user", "round": "day"}, "depend on all rounds"),
        ({"max_items": 2}, "name the clients"),
        ({"domain": "open"}, "open domain yet"),
        ({"private": True}, "the candidates must be public"),
    ],
)
def test_a_wrong_option_is_an_error_before_any_row_is_read(asked, message):
    frame = dd.from_map(no_disk, range(2), meta=table()[:0])
    with pytest.raises(InvalidInputError, match=message):
        tally_dask(frame, **{"item": "word", "seed": 7} | asked)


def test_a_frame_that_is_none_of_dask():
    with pytest.raises(InvalidInputError, match="must be a Dask data frame, got DataFrame: fedt"):
        tally_dask(table(), item="word", seed=7)


def test_without_a_cluster_this_process_counts():
    with dask.config.set(scheduler="synchronous"):
        check(dd.from_pandas(table(), npartitions=3), CASES["clients"])


def test_a_seed_is_not_shown_by_what_dask_handles():
    assert "4711" not in repr(engine._Options({"seed": 4711}))


@pytest.mark.project
def test_the_example_of_the_library_runs(workers, tmp_path, monkeypatch):
    """The block of docs/library.md, on a folder of Parquet files."""
    page = Path(__file__).parents[2] / "docs" / "library.md"
    block = re.search(r"```python\n(import dask.*?)```", page.read_text("utf-8"), re.DOTALL)
    rows = table().rename(columns={"word": "url", 7: "seven"})
    (tmp_path / "visits").mkdir()
    for number in range(3):
        rows[number::3].to_parquet(tmp_path / "visits" / f"{number}.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dask.distributed.Client", lambda _address: workers)
    found = {}
    exec(block[1], found)
    whole = fedtally.estimate(rows, item="url", client="user", max_items=5, num_rounds=10, seed=7)
    assert found["result"].top(20) == whole.top(20)


@pytest.mark.parametrize("part", [lambda frame: frame, lambda frame: frame["word"]])
def test_a_frame_itself_is_refused(part):
    frame = dd.from_pandas(table()[["word"]], npartitions=2)
    with pytest.raises(InvalidInputError, match="pass frame.compute"):
        fedtally.estimate(part(frame))


@pytest.mark.parametrize("kind", [object, "str", "category"])
def test_one_client_of_two_spellings_is_in_one_partition(kind):
    """The shuffle looks at the text: without a common spelling it would part 7 and 7.0."""
    people = [f"{n}{end}" for n in range(150) for end in ("", ".0", ".00")]
    rows = pd.DataFrame({"user": pd.Series(people, dtype=kind), "word": "tea"})
    frame = dd.from_pandas(rows, npartitions=6)
    for one in (frame, dd.concat([frame, frame]).repartition(npartitions=4)):
        tally = tally_dask(one, item="word", client="user", seed=7)
        assert fedtally.estimate(tally, seed=7).num_clients == 150
