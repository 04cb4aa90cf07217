"""The known answers of docs/open-domain.md, which tools/gen_vectors.py computed from the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedtally.campaign.client import FrequencyClient
from fedtally.domain import OpenStrings, symbols
from fedtally.plan import Plan
from fedtally.sketch import Spelling
from fedtally.sketch.spelling import slots

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "open.json").read_text())


def test_symbols():
    for case in VECTORS["symbols"]:
        name = np.frombuffer(bytes.fromhex(case["utf8"]), np.uint8)
        found = symbols.encode(
            name, np.array([0, len(name)]), case["max_length"], case["positions"]
        )
        assert found.tobytes().hex() == case["symbols"], case


def test_slots():
    for case in VECTORS["slots"]:
        assert slots(bytes.fromhex(case["seed"]), case["positions"]).tolist() == case["slots"]


def test_a_clients_vector():
    for case in VECTORS["vectors"]:
        domain = OpenStrings(case["max_length"], case["bits"])
        plan = Plan(
            rows=case["rows"],
            width=case["width"],
            schedule="hybrid" if case["batches"] > 1 else "shared",
            num_rounds=case["batches"],
            num_clients=1000,
            max_round_clients=1000,
            domain=domain.describe(),
            max_items=1,
            seed=bytes.fromhex(case["seed"]),
            spelling=Spelling(case["spelling_rows"], case["spelling_width"], case["max_length"]),
        )
        item = bytes.fromhex(case["utf8"]).decode()
        vector = FrequencyClient(plan, domain, [item]).contribution(case["batch"])
        places = np.flatnonzero(vector)
        found = ((1 + places) * vector[places]).tolist()
        assert sorted(found) == sorted(case["entries"]), case["name"]
        # one in each row of each part, whatever the item
        assert np.abs(vector).sum() == plan.spec.touched == len(found), case["name"]
