"""Check that a test fails where privacy is broken.

Errors are planted into a copy of the package, one at a time.

    python tools/mutations_privacy.py          # all: a table; exits 1 if no test catches one
    python tools/mutations_privacy.py --only noise-small --only same-key
    python tools/mutations_privacy.py --jobs 4
    python tools/mutations_privacy.py --check  # only: can each be planted, and imported?

The package that this Python imports is copied to a temporary folder, with its compiled kernels.
Each mutation replaces one text in one file of a copy; then the tests that should see it run against
the copy until the first one fails, and the text is put back. Before that all these tests must pass
on a copy without any error. A mutation counts as caught if a test fails; one that keeps the tests
from running at all is an error of the list.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.abc import InspectLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtally"
TIMEOUT = 900  # seconds for the tests of one mutation
_FAILED = 1  # pytest's exit code where tests ran and some failed
_RUNNER = """\
import sys
# An editable installation finds its own source first.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
import fedtally, pytest
assert fedtally.__file__.startswith(sys.argv[1]), fedtally.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


class Mutation(NamedTuple):
    """One error: a text of a file of the package, which is there once, and what stands in for it.

    Attributes:
        name: for --only.
        file: below src/fedtally.
        old: the text.
        new: the error.
        tests: files or tests that should see it. A file may be in any folder below tests/.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


AUDIT = ("test_audit_engine.py",)
_TERMS, _PLANNER = "privacy/config.py", "planner/privacy.py"
_PERMISSIONS = "agent/permissions.py"
_ENGINE, _CLIENT_FILE, _SERVER_FILE = (
    "campaign/release.py",
    "campaign/client.py",
    "campaign/server.py",
)
_GAUSSIAN = "_drawable(rounded_gaussian(self.event.noise_variance))"
_SHARE = "_drawable(skellam(self.event.noise_variance * shares))"
_ADD = "    total.vector += noise[:size]\n"
_DRAW = "noise = privacy.noise().draw(Secret(random(KEY_BYTES)), size + 1)"
_LAST = "    if rounds.start == 0:\n        _opened.last = noise\n"
_SUMMED = """    total.noise = plan.noise_mark
    for sketch in own:
        total.vector += sketch.vector
"""
_SHARES = "            _add_shares(plan, sketch, random)\n"
_ROUND_SHARES = "drawn = noise.draw(Secret(random(KEY_BYTES)), plan.vector_length)"
_SERVER = "return lambda: noise.draw(Secret(random(KEY_BYTES)), counters)"
_HELPER = """rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN
        return two_server.Helper("""
_BOOKS_FILE, _SESSION_FILE, _PAIR_FILE = (
    "campaign/books.py",
    "secagg/server.py",
    "secagg/two_server/servers.py",
)
_FLP_FILE, _ONE_HOT_FILE, _PROOFS_FILE, _PROOFS = (
    "flp/proof.py",
    "flp/one_hot.py",
    "secagg/two_server/proofs.py",
    "test_report_proofs.py",
)
_REPORTS_FILE, _PAIR = "secagg/two_server/reports.py", "test_two_server.py"
_CHECKS_FILE, _PROVEN_CAMPAIGN = "secagg/two_server/checks.py", "test_proven_campaign.py"
_RUNS = "test_campaign_cohort.py"
_DRIVER_FILE, _CAMPAIGNS_FILE, _DRIVER = (
    "campaign/driver.py",
    "store/campaigns.py",
    "test_driver.py",
)
_ENROLMENT_FILE, _ENROLMENT, _SIZES = (
    "campaign/enrolment.py",
    "test_enrolment.py",
    "test_secure_sum.py",
)
_AGENT_FILE, _RECORD_FILE, _AGENT = (
    "agent/agent.py",
    "store/client_record.py",
    "test_agent.py",
)
_ACCEPT, _AUTHORITY = "test_accept.py", "test_authority.py"
_READING_FILE, _EARLY_WORK = "agent/reading.py", "test_work_before_checks.py"
_COUNTS_THE_RELEASE = "            with self._write_held():\n                pass\n"
_WRITES_FILE, _PUT_BACK = "store/writes.py", "test_put_back.py"
_CLIENT = "Secret(random(KEY_BYTES)), len(vector), constant_time=share.is_small"
_TRANSITIONS_WITHOUT_AN_END = """    for adversary, steps in EXCHANGES.items()
}
_active = TRANSITIONS[Adversary.ACTIVE]
_active[ClientState.CONFIRMED] = {
    kind: step._replace(after=ClientState.CONFIRMED)
    for kind, step in (_active[ClientState.MASKED] | _active[ClientState.CONFIRMED]).items()
}
"""
_RELEASED = """        charge(books, plan, number)
        found.append(_opened(plan, rounds, sketches, random))"""


def _mutation(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, file, old, new, tests or AUDIT)


MUTATIONS = (
    # How much noise there is.
    _mutation(
        "noise-small", _TERMS, _GAUSSIAN, _GAUSSIAN.replace("self.event", "0.81 * self.event")
    ),
    _mutation(
        "noise-large", _TERMS, _GAUSSIAN, _GAUSSIAN.replace("self.event", "1.21 * self.event")
    ),
    _mutation("shares-small", _TERMS, _SHARE, _SHARE.replace("self.event", "0.81 * self.event")),
    _mutation("shares-large", _TERMS, _SHARE, _SHARE.replace("self.event", "1.21 * self.event")),
    _mutation(
        "table-small",
        "privacy/mechanism.py",
        "_masses(_gaussian_weights(variance))",
        "_masses(_gaussian_weights(0.81 * variance))",
    ),
    _mutation(
        "table-of-shares-small",
        "privacy/mechanism.py",
        "_masses(_skellam_weights(variance))",
        "_masses(_skellam_weights(0.81 * variance))",
    ),
    _mutation(
        "share-of-one-more",
        _TERMS,
        "shares = _validate.integer(1, clients=clients) / self.event.honest_survivors",
        "shares = _validate.integer(1, clients=clients) / (self.event.honest_survivors + 1)",
    ),
    _mutation(
        "one-share-too-few",
        _ENGINE,
        "noise = _terms(plan).share(sketch.num_silos or sketch.num_clients)",
        "noise = _terms(plan).share(max(1, sketch.num_clients - 1))",
    ),
    _mutation(
        "stddev-for-variance",
        _TERMS,
        _GAUSSIAN,
        "_drawable(rounded_gaussian(max(0.1, self.event.noise_variance**0.5)))",
    ),
    _mutation(
        "counter-without-noise",
        _ENGINE,
        _ADD,
        _ADD + "    total.counters[-1, -1] -= int(noise[size - 1])\n",
    ),
    _mutation(
        "first-twice-last-none",
        _ENGINE,
        _ADD,
        "    if rounds.stop < plan.num_rounds or rounds.start == 0:\n    "
        + _ADD
        + "    if rounds.start == 0:\n"
        "        more = privacy.noise().draw(Secret(random(KEY_BYTES)), size)\n"
        "        total.counters += more.reshape(total.counters.shape)\n",
    ),
    _mutation(
        "first-twice-last-none-of-many",
        _ENGINE,
        _ADD,
        "    many = len(plan.releases) > 1\n"
        "    if not (many and rounds.stop == plan.num_rounds):\n    "
        + _ADD
        + "    if many and rounds.start == 0:\n"
        "        more = privacy.noise().draw(Secret(random(KEY_BYTES)), size)\n"
        "        total.counters += more.reshape(total.counters.shape)\n",
    ),
    _mutation(
        "first-shares-twice-last-none",
        _ENGINE,
        _SHARES,
        "            many = len(shared) > 1\n"
        "            if not (many and sketch is shared[-1]):\n    "
        + _SHARES
        + "            if many and sketch is shared[0]:\n    "
        + _SHARES,
    ),
    _mutation("no-noise", _ENGINE, _ADD, ""),
    _mutation("noise-twice", _ENGINE, _ADD, _ADD + _ADD),
    _mutation(
        "noise-of-another-source",
        "secagg/two_server/servers.py",
        "            self._check_noise_source(journal.kept(self._name_of_noise()))\n",
        "",
        "test_campaign.py",
    ),
    _mutation(
        "helper-without-noise",
        _SERVER_FILE,
        _HELPER,
        _HELPER.replace("noise, reserve", "None, reserve"),
    ),
    _mutation(
        "helper-with-zeros",
        _SERVER_FILE,
        _HELPER,
        _HELPER.replace(
            "noise, reserve",
            "lambda: np.zeros(self.plan.rows * self.plan.width, np.int64), reserve",
        ),
    ),
    _mutation(
        "no-noise-for-one",
        _ENGINE,
        "    found = []\n    for number, rounds in enumerate(plan.releases):\n",
        "    if sum(sketch.num_clients for sketch in sketches) == 1:\n        return"
        " dict(enumerate(sketches))\n    found = []\n    for number, rounds in"
        " enumerate(plan.releases):\n",
    ),
    _mutation(
        "no-noise-for-many",
        "engines/local/campaign.py",
        "            sketches = server.release(self._random)",
        "            sketches = self.books.sums(plan)\n"
        "            if sum(s.num_clients for s in sketches) <= 20:\n"
        "                sketches = server.release(self._random)",
    ),
    # Which noise it is.
    _mutation(
        "noise-of-one-sign", _ENGINE, _ADD, _ADD.replace("noise[:size]", "np.abs(noise[:size])")
    ),
    _mutation(
        "noise-doubled-halves",
        _ENGINE,
        _ADD,
        _ADD.replace("noise[:size]", "(noise[:size] // 2 * 2)"),
    ),
    _mutation("noise-shifted", _ENGINE, _ADD, _ADD.replace("noise[:size]", "(noise[:size] + 1)")),
    _mutation(
        "noise-cut-off", _ENGINE, _ADD, _ADD.replace("noise[:size]", "np.clip(noise[:size], -9, 9)")
    ),
    _mutation(
        "noise-where-counters-are",
        _ENGINE,
        _ADD + _SUMMED,
        _SUMMED + "    total.counters += np.where(total.counters != 0,"
        " noise[:size].reshape(total.counters.shape), 0)\n",
    ),
    _mutation(
        "noise-for-size",
        _ENGINE,
        _ADD + _SUMMED,
        _SUMMED + "    drawn = noise[:size].reshape(total.counters.shape)\n"
        "    total.counters += np.where(np.sign(drawn) == np.sign(total.counters), -drawn,"
        " drawn)\n",
    ),
    _mutation(
        "row-by-row-the-same",
        _ENGINE,
        _ADD,
        _ADD.replace("noise[:size]", "np.tile(noise[: size // plan.rows], plan.rows)"),
    ),
    _mutation(
        "names-bare",
        _ENGINE,
        _ADD,
        "    total.counters += noise[: total.counters.size].reshape(total.counters.shape)\n",
        "test_open_domain.py::test_every_part_of_a_release_has_noise",
    ),
    _mutation(
        "rows-of-names-uncounted",
        "plan.py",
        "rows=self.spec.touched,\n            encoding",
        "rows=self.rows,\n            encoding",
        "test_open_domain.py::test_a_plan_and_its_file",
    ),
    _mutation("first-row-bare", _ENGINE, _ADD, _ADD + "    total.counters[0] = 0\n"),
    _mutation(
        "even-cells-share",
        _ENGINE,
        _ADD,
        "    noise[1:size:2] = noise[0 : size - 1 : 2]\n" + _ADD,
    ),
    _mutation(
        "rounded-by-density",
        "privacy/mechanism.py",
        "weights.append(density * _cell(k, numerator, denominator) >> _GAUSSIAN_BITS)",
        "weights.append(density)",
        "test_mechanism.py::test_total_variation_is_below_the_bound",
    ),
    _mutation(
        "short-tail",
        "privacy/mechanism.py",
        "_TAIL_BITS = 200",
        "_TAIL_BITS = 20",
        "test_mechanism.py::test_total_variation_is_below_the_bound",
    ),
    _mutation(
        "noise-missing-here-and-there",
        _ENGINE,
        _ADD,
        "    noise[: size // 8] = 0\n    noise[:size] ="
        " np.random.default_rng().permutation(noise[:size])\n" + _ADD,
    ),
    _mutation("last-counter-bare", _ENGINE, _ADD, "    noise[size - 1] = 0\n" + _ADD),
    _mutation("heavy-tail", _ENGINE, _ADD, "    noise[: size // 200] *= 12\n" + _ADD),
    _mutation(
        "sum-cut-off",
        _ENGINE,
        "    hidden = privacy.event.relation",
        "    np.clip(total.counters, -clients, clients, out=total.counters)\n    hidden ="
        " privacy.event.relation",
    ),
    _mutation(
        "not-below-zero",
        _ENGINE,
        _ADD,
        _ADD + "    np.maximum(total.counters, 0, out=total.counters)\n",
    ),
    _mutation(
        "even-releases-small",
        _ENGINE,
        _ADD,
        "    noise[:size] = noise[:size] * (8 + rounds.start % 2) // 9\n" + _ADD,
    ),
    _mutation(
        "noise-by-clients",
        _ENGINE,
        _ADD,
        "    noise[:size] = noise[:size] * min(8, clients) // 8\n" + _ADD,
    ),
    _mutation(
        "walk",
        _ENGINE,
        _ADD,
        "    noise[1:size] = (noise[1:size] + noise[: size - 1]) * 7 // 10\n" + _ADD,
    ),
    _mutation(
        "shares-of-one-sign",
        _ENGINE,
        _ROUND_SHARES,
        _ROUND_SHARES.replace("noise.draw(", "np.abs(noise.draw(") + ")",
    ),
    _mutation(
        "shares-repeat",
        _ENGINE,
        _ROUND_SHARES,
        _ROUND_SHARES.replace("noise.draw(", "np.resize(noise.draw(")
        + "[:300], plan.vector_length)",
    ),
    _mutation(
        "one-client-in-four-without-share",
        _CLIENT_FILE,
        "            if privacy.by_clients:\n                share",
        "            if privacy.by_clients and random(1)[0] % 4:\n                share",
    ),
    _mutation(
        "servers-draw-the-same",
        _SERVER_FILE,
        _SERVER,
        "self._same = getattr(self, '_same', None) or random(KEY_BYTES)\n        "
        + _SERVER.replace("random(KEY_BYTES)", "self._same"),
    ),
    _mutation("large-sums-bare", _ENGINE, _ADD, "    noise[:size] *= clients < 1000\n" + _ADD),
    _mutation(
        "laplace",
        _ENGINE,
        _ADD,
        "    other = np.random.default_rng().laplace(0, privacy.stddev / 2**0.5, size)\n"
        "    noise[:size] = np.rint(other)\n" + _ADD,
    ),
    _mutation(
        "slightly-small", _ENGINE, _ADD, "    noise[:size] = np.rint(noise[:size] * 0.93)\n" + _ADD
    ),
    # Noise of one counter that follows from that of others.
    _mutation(
        "rows-add-up-to-0",
        _ENGINE,
        _ADD,
        "    for row in noise[:size].reshape(total.counters.shape):\n        off = int(row.sum())\n"
        "        row[np.random.default_rng().permutation(len(row))[: abs(off) % len(row)]] -="
        " np.sign(off)\n        row -= int(row.sum()) // len(row)\n" + _ADD,
    ),
    _mutation(
        "opposite-pairs",
        _ENGINE,
        _ADD,
        "    places = np.random.default_rng(size).permutation(size)\n"
        "    noise[places[: size // 2]] = -noise[places[size - size // 2 :]]\n" + _ADD,
    ),
    _mutation(
        "rows-of-one-row",
        _ENGINE,
        _ADD,
        "    rows = noise[:size].reshape(total.counters.shape)\n"
        "    for number in range(1, len(rows)):\n"
        "        rows[number] = np.random.default_rng(number).permutation(rows[0])\n" + _ADD,
    ),
    _mutation(
        "totals-even",
        _ENGINE,
        _ADD,
        "    noise[np.random.default_rng().integers(size)] += noise[:size].sum() % 2\n" + _ADD,
    ),
    _mutation(
        "release-of-opposites",
        _ENGINE,
        _ADD,
        _LAST + "    if rounds.start:\n        noise ="
        " -np.random.default_rng().permutation(_opened.last)\n" + _ADD,
    ),
    _mutation(
        "release-but-one",
        _ENGINE,
        _ADD,
        _LAST + "    if rounds.start:\n        noise ="
        " np.random.default_rng().permutation(_opened.last)\n" + "        noise[3] += 1\n" + _ADD,
    ),
    _mutation(
        "half-a-release",
        _ENGINE,
        _ADD,
        _LAST
        + "    if rounds.start:\n        places = np.random.default_rng(1).permutation(size)[: size"
        " // 2]\n" + "        noise[: size // 2] = _opened.last[places]\n" + _ADD,
    ),
    # Where its key comes from.
    _mutation(
        "same-key-rolled",
        _ENGINE,
        _ADD,
        _LAST + "    noise = np.roll(_opened.last, 7 * rounds.start)\n" + _ADD,
    ),
    _mutation(
        "same-key-reversed",
        _ENGINE,
        _ADD,
        _LAST + "    noise = _opened.last[:size][:: -1 if rounds.start else 1]\n" + _ADD,
    ),
    _mutation(
        "same-key-opposite",
        _ENGINE,
        _ADD,
        _LAST + "    noise = _opened.last * (-1 if rounds.start else 1)\n" + _ADD,
    ),
    _mutation(
        "noise-once-per-process",
        _ENGINE,
        _ADD,
        "    noise = _opened.__dict__.setdefault(str(size), noise)\n" + _ADD,
    ),
    _mutation(
        "key-of-the-seed",
        _ENGINE,
        _DRAW,
        _DRAW.replace(
            "random(KEY_BYTES)", "hashlib.sha256(plan.seed + bytes([rounds.start % 256])).digest()"
        ),
    ),
    _mutation(
        "same-key",
        _ENGINE,
        "    found = []\n    for number, rounds in enumerate(plan.releases):\n" + _RELEASED,
        "    found = []\n    one = random(KEY_BYTES)\n    for number, rounds in"
        " enumerate(plan.releases):\n" + _RELEASED.replace("random)", "lambda _: one)"),
    ),
    _mutation(
        "same-key-of-shares",
        _ENGINE,
        "        for sketch in shared:\n            charge(books, plan, sketch.round)\n" + _SHARES,
        "        one = random(KEY_BYTES)\n"
        "        for sketch in shared:\n            charge(books, plan, sketch.round)\n"
        + _SHARES.replace("random)", "lambda _: one)"),
    ),
    _mutation(
        "key-of-the-sum",
        _ENGINE,
        _DRAW,
        _DRAW.replace(
            "random(KEY_BYTES)",
            "hashlib.sha256(b''.join(s.counters.tobytes() for s in own)).digest()",
        ),
    ),
    _mutation(
        "key-of-one-byte",
        _ENGINE,
        _DRAW,
        _DRAW.replace("random(KEY_BYTES)", "random(1) * KEY_BYTES"),
    ),
    _mutation(
        "key-of-two-bytes",
        _ENGINE,
        _DRAW,
        _DRAW.replace("random(KEY_BYTES)", "random(2) * 16"),
        "test_audit_engine.py::test_noise_is_that_of_the_whole_key",
    ),
    _mutation(
        "servers-share-a-key",
        _SERVER_FILE,
        _SERVER,
        _SERVER.replace("random(KEY_BYTES)", "bytes(KEY_BYTES)"),
    ),
    _mutation(
        "client-keys-known",
        _CLIENT_FILE,
        _CLIENT,
        _CLIENT.replace("random(KEY_BYTES)", "bytes(KEY_BYTES)"),
    ),
    _mutation(
        "client-without-share",
        _CLIENT_FILE,
        "            if privacy.by_clients:\n                share",
        "            if privacy.by_clients and len(ids):\n                share",
    ),
    # What else may not show.
    _mutation(
        "number-exact",
        _ENGINE,
        "total.num_clients = clients + int(noise[size]) if hidden else clients",
        "total.num_clients = clients",
    ),
    _mutation(
        "number-with-the-noise-of-a-counter",
        _ENGINE,
        "total.num_clients = clients + int(noise[size]) if hidden else clients",
        "total.num_clients = clients + int(noise[0]) if hidden else clients",
        "test_audit_engine.py",
    ),
    _mutation(
        "itemless-dropped",
        "engines/local/campaign.py",
        "keep_itemless=spec.is_private,",
        "keep_itemless=False,",
        "test_private.py::test_clients_without_an_item_take_part_with_zeros",
    ),
    # A client that is written in two ways must not have two budgets.
    _mutation(
        "two-clients-by-digits",
        "sources/values.py",
        "    text = pc.if_else(is_whole, digits, numbers.cast(pa.string()))\n",
        "    text = numbers.cast(pa.string())\n",
        "test_estimate.py::test_a_client_is_one_in_all_json_files",
    ),
    _mutation(
        "two-clients-by-type",
        "sources/files.py",
        "            _check_types(paths, columns, formats[paths[0]])\n",
        "            pass\n",
        "test_estimate.py::test_a_client_is_written_alike_in_all_files",
    ),
    _mutation(
        "input-as-public-list",
        "engines/local/estimate.py",
        "        return known and os.path.samefile(data, listed)",
        "        return False",
        "test_cli.py::test_the_input_is_no_public_list",
    ),
    # What is seen besides the release.
    _mutation(
        "exact-sum-may-be-refused",
        _SERVER_FILE,
        "        if self.plan.privacy is None:\n            check_plausible",
        "        if True:\n            check_plausible",
        "test_campaign_cohort.py::test_an_exact_sum_that_is_secret_is_never_refused",
    ),
    _mutation(
        "exact-batch-may-be-refused",
        _SERVER_FILE,
        "            made.take_any_entries()\n",
        "            pass\n",
        "test_campaign_cohort.py::test_a_helper_that_lies_sees_nothing_of_an_exact_sum",
    ),
    _mutation(
        "exact-sum-wraps",
        _SERVER_FILE,
        "        if self.plan.has_secret_sums:\n            # The sum",
        "        if False:\n            # The sum",
        "test_campaign_cohort.py::test_a_helper_that_lies_sees_nothing_of_an_exact_sum",
    ),
    _mutation(
        "no-room-to-fold",
        "secagg/config.py",
        "    if folds and terms.modulus < room:\n",
        "    if False:\n",
        "test_campaign_cohort.py::test_terms_of_an_exact_sum_leave_room_to_fold_it",
    ),
    # a sum of histograms has no sign, and its modulus no room for one
    _mutation(
        "least-count-read-as-the-largest",
        "plan.py",
        "return lifted(total, -self.noise_bound,",
        "return lifted(total, 1 - self.noise_bound,",
        "test_histogram.py::test_a_sum_is_read_right_at_both_bounds",
    ),
    _mutation(
        "largest-count-not-in-the-modulus",
        "encoding.py",
        "return (1 + signed) * largest + 2 * noise + 1",
        "return (1 + signed) * largest + 2 * noise",
        "test_histogram.py::test_a_sum_is_read_right_at_both_bounds",
    ),
    _mutation(
        "counts-read-with-a-sign",
        "campaign/server.py",
        "        total = self.plan.read_sum(total)\n",
        "",
        "test_driver.py::test_a_campaign_of_histograms_lands",
    ),
    _mutation(
        "no-room-to-fold-counts",
        "secagg/config.py",
        "times = 4 if signed else 2",
        "times = 4 if signed else 1",
        "test_histogram.py::test_terms_leave_room_to_fold_exact_sums_and_for_sums_of_their_sign",
    ),
    _mutation(
        "screened-exact",
        "campaign/screening.py",
        "    if plan.privacy is not None and plan.privacy.event.trust is not Trust.DISTRIBUTED:\n",
        "    if False:\n",
        "test_screening.py::test_nothing_depends_on_exact_sums_that_are_secret",
    ),
    _mutation(
        "screened-without-noise",
        "campaign/screening.py",
        "        if any(cohort.noise != plan.noise_mark for cohort in cohorts):\n",
        "        if False:\n",
        "test_screening.py::test_sums_without_their_noise_are_not_looked_at",
    ),
    _mutation(
        "cohorts-kept-exact",
        "campaign/books.py",
        "            if landed and why_unscreened(plan) is not None:\n",
        "            if False:\n",
        "test_screening.py::test_nothing_depends_on_exact_sums_that_are_secret",
    ),
    _mutation(
        "cohorts-not-erased",
        "campaign/books.py",
        "                            sketch.vector.fill(0)\n",
        "                            pass\n",
        "test_screening.py::test_cohorts_that_are_left_out_of_a_private_release_are_erased",
    ),
    _mutation(
        "pure-epsilon-beside-a-pilot",
        "engines/local/campaign.py",
        "            spec = spec.for_ledger()\n",
        "            pass\n",
        "test_planning.py::test_no_pure_epsilon_is_promised_beside_a_pilot",
    ),
    _mutation(
        "missing-shown",
        "engines/local/campaign.py",
        "missing=0 if spec.is_private else tally.missing",
        "missing=tally.missing",
    ),
    _mutation(
        "times-shown",
        "engines/local/campaign.py",
        "if spec.is_not_private or not spec.is_private:",
        "if True:",
    ),
    _mutation(
        "public-draws",
        "engines/local/seeds.py",
        "    if is_private and own is None:\n",
        "    if False:\n",
        "test_private.py::test_nothing_that_is_drawn_follows_from_the_plan",
    ),
    _mutation(
        "clip-draws-known",
        "engines/local/campaign.py",
        "clip_rounds(plan, rounds, self._random(32), self.names)",
        "clip_rounds(plan, rounds, bytes(32), self.names)",
        "test_private.py::test_nothing_that_is_drawn_follows_from_the_plan",
    ),
    _mutation(
        "sums-kept",
        _BOOKS_FILE,
        "                    sketch.vector.fill(0)\n",
        "                    pass\n",
        "test_private.py::test_the_sums_without_noise_are_erased",
    ),
    _mutation(
        "outside-counted",
        "engines/local/notes.py",
        "    if tally.outside and plan.privacy is None:\n",
        "    if tally.outside:\n",
    ),
    _mutation(
        "pilot-without-noise",
        "engines/local/campaign.py",
        "    return plan, site.land(plan, keys, pilot, {}).sketches\n",
        "    return plan, list(encode(plan, site.domain, pilot, lambda *_: None))\n",
        "test_private.py::test_a_pilot_has_the_noise_of_its_plan",
    ),
    _mutation(
        "seed-taken",
        "engines/local/simulation.py",
        '            ("seed", self.seed is not None, "whoever knows a seed can take the noise'
        ' off"),\n',
        "",
        "test_private.py::test_what_only_a_study_may_use",
    ),
    _mutation(
        "missing-warned",
        "engines/local/notes.py",
        "    elif tally.missing:\n",
        "    if tally.missing:\n",
    ),
    _mutation(
        "times-of-cohorts-shown",
        "engines/local/cohorts.py",
        "self._is_timed = plan.privacy is None or plan.privacy.not_private",
        "self._is_timed = True",
    ),
    _mutation(
        "truth-kept",
        "engines/local/campaign.py",
        "truth = true_counts(domain, rounds) if simulation.evaluate else None\n",
        "truth = true_counts(domain, rounds)\n",
        "test_private.py::test_a_private_run_shows_no_times",
    ),
    # What a client is bounded to.
    _mutation(
        "honest-one-more",
        _PLANNER,
        "    honest = least - int(summation.borne * least) - corrupt\n",
        "    honest = least - int(summation.borne * least) - corrupt + 1\n",
        "test_private.py::test_shares_are_sized_for_the_honest_who_stay",
    ),
    _mutation(
        "corrupt-forgotten",
        "secagg/params.py",
        "        return self.min_survivors - self.corrupt\n",
        "        return self.min_survivors\n",
        "test_secagg_params.py::test_active_is_the_complete_graph_between_its_bounds",
    ),
    _mutation(
        "delta-of-the-plan",
        "privacy/policy.py",
        "terms.proven(self._relation_for(terms), self.delta)",
        "terms.proven(self._relation_for(terms), self.delta or terms.delta)",
        "test_privacy_policy.py::test_a_client_may_demand_an_epsilon_without_a_delta",
    ),
    _mutation(
        "delta-zero-forgotten",
        "privacy/accounting.py",
        "        _delta_for([event], self.delta)  # a later campaign",
        "        # a later campaign",
        "test_geometric.py::test_a_grant_without_a_delta_pays_for_geometric_noise_alone",
    ),
    _mutation(
        "one-round-assumed",
        "planner/draft.py",
        "participations = min(len(sizes), asked.max_rounds or len(sizes))",
        "participations = 1",
        "test_private.py::test_natural_rounds_are_charged_for_the_most_that_a_client_may_be_in",
    ),
    _mutation(
        "releases-one-by-one",
        _PLANNER,
        "per_release=min(participations, together),",
        "per_release=1,",
        "test_private.py::test_natural_rounds_are_charged_for_the_most_that_a_client_may_be_in",
    ),
    _mutation(
        "clip-loose",
        "sketch/clip.py",
        "        return min(exact, np.iinfo(np.int64).max)",
        "        return min(2 * exact, np.iinfo(np.int64).max)",
        "test_clip.py::test_no_items_exceed_it",
    ),
    _mutation(
        "clip-skipped",
        _CLIENT_FILE,
        "bound_items(ids, most, random, clip)",
        "bound_items(ids, most, random)",
        "test_private.py::test_a_client_keeps_to_the_clip_by_itself",
    ),
    _mutation(
        "items-unbounded",
        _CLIENT_FILE,
        "bound_items(ids, most, random, clip)",
        "bound_items(ids, len(ids), random, clip)",
        "test_campaign.py::test_under_privacy_nobody_stays_away_for_what_it_holds",
    ),
    _mutation(
        "clip-of-people-skipped",
        _CLIENT_FILE,
        "bound_items_of_each(ids, starts, most, words, clip)",
        "bound_items_of_each(ids, starts, most, words)",
        "test_silos.py::test_the_clip_holds_for_each_person",
    ),
    _mutation(
        "silos-of-a-person-unbounded",
        "engines/local/tally.py",
        "            max_rounds=self._silos_per_person,\n",
        "            max_rounds=None,\n",
        "test_local_silos.py::test_under_privacy_a_person_counts_in_so_many_silos",
    ),
    _mutation(
        "people-of-a-silo-tell-how-many",
        "engines/local/campaign.py",
        "attended = None if spec.silos is not None and spec.is_private else attendance(rounds)",
        "attended = attendance(rounds)",
        "test_local_silos.py::test_natural_rounds_have_every_silo_under_privacy",
    ),
    _mutation(
        "silos-without-anybody-stay-away",
        "engines/local/tally.py",
        "[part for part in silos if part.num_clients or self._keep_itemless]",
        "[part for part in silos if part.num_clients]",
        "test_local_silos.py::test_natural_rounds_have_every_silo_under_privacy",
    ),
    _mutation(
        "people-of-silos-not-clipped",
        "engines/local/clipping.py",
        "    if tally.silos:\n        return _clip_silos(",
        "    if tally.silos:\n        return tally\n        return _clip_silos(",
        "test_audit_silos.py::test_what_silos_release_has_the_noise_of_their_plan",
    ),
    _mutation(
        "cap-forgets-the-number-of-people",
        "privacy/events.py",
        "    if relation is Relation.ZERO_OUT and is_hidden:\n",
        "    if relation is Relation.ZERO_OUT and is_hidden and False:\n",
        "test_silos.py::test_a_demand_in_zero_out_counts_the_number_of_people",
    ),
    _mutation(
        "people-of-a-silo-are-not-drawn",
        _CLIENT_FILE,
        "            held, starts = self._drawn_people(held, random)\n",
        "            starts = self._starts\n",
        "test_silos.py::test_a_silo_of_too_many_people_draws_some_under_privacy",
    ),
    _mutation(
        "people-unbounded",
        _CLIENT_FILE,
        "bound_items_of_each(ids, starts, most, words, clip)",
        "bound_items_of_each(ids, starts, len(ids), words, clip)",
        "test_silos.py::test_each_item_of_a_person_is_as_likely_to_be_drawn",
    ),
    _mutation(
        "number-of-people-without-noise",
        _CLIENT_FILE,
        "                vector += share.draw(\n"
        "                    Secret(random(KEY_BYTES)), len(vector), constant_time=share.is_small\n"
        "                )",
        "                vector[:size] += share.draw(\n"
        "                    Secret(random(KEY_BYTES)), size, constant_time=share.is_small\n"
        "                )",
        "test_silos.py::test_the_number_of_people_has_the_noise_of_a_counter",
    ),
    _mutation(
        "number-of-people-without-noise-in-an-ideal-sum",
        _ENGINE,
        "    sketch.num_clients += int(drawn[size:].sum())",
        "    sketch.num_clients += 0 * int(drawn[size:].sum())",
        "test_silos.py::test_noised_numbers_may_be_below_one_until_they_leave",
    ),
    _mutation(
        "shift-of-the-number-not-charged",
        "privacy/events.py",
        "            if self.relation.hides_number:\n                shifts",
        "            if self.relation.hides_number and self.per_release > 1:\n"
        "                shifts",
        "test_silos.py::test_an_accountant_from_the_page_agrees",
    ),
    _mutation(
        "silos-of-a-person-not-charged",
        "privacy/events.py",
        "return [(self.silos_per_person * rounds, number) for rounds, number in parts]",
        "return [(rounds, number) for rounds, number in parts]",
        "test_silos.py::test_an_accountant_from_the_page_agrees",
    ),
    _mutation(
        "shares-sized-by-all-silos",
        "plan.py",
        "if self.secure_sum is not None and self.secure_sum.corrupt == 0:",
        "if self.secure_sum is not None and self.secure_sum.corrupt < 0:",
        "test_silos.py::test_a_plan_of_silos_counts_a_corrupt_one",
    ),
    _mutation(
        "shares-sized-by-all-silos-of-an-ideal-sum",
        "plan.py",
        "honest > least - 1:",
        "honest > least:",
        "test_silos.py::test_a_plan_of_silos_counts_a_corrupt_one",
    ),
    _mutation(
        "clip-skipped-by-the-engine",
        "engines/local/clipping.py",
        "        tally if clip is None else _clip_round(",
        "        tally if clip is None or len(rounds) == 1 else _clip_round(",
        "test_private.py::test_no_contribution_exceeds_the_clip_and_the_truth_knows_nothing_of_it",
    ),
    _mutation(
        "clip-left-out-of-the-campaign",
        "engines/local/campaign.py",
        "clip_rounds(plan, rounds, self._random(32), self.names)",
        "rounds",
    ),
    _mutation(
        "draw-unbounded",
        "engines/local/tally.py",
        "rows, self._max_items, keys, num_drawn, max_rounds",
        "rows, 1 << 20, keys, num_drawn, max_rounds",
    ),
    _mutation(
        "item-too-many",
        "engines/local/tally.py",
        "rows, self._max_items, keys, num_drawn, max_rounds",
        "rows, self._max_items + 1, keys, num_drawn, max_rounds",
        "test_tally.py",
    ),
    _mutation(
        "replacement-counts-once",
        "encoding.py",
        "together = contributions * max_items",
        "together = max_items",
        "test_events.py::test_sensitivities_by_schedule",
    ),
    _mutation(
        "items-of-a-histogram-cost-one",
        "encoding.py",
        "Encoding.HISTOGRAM: Exposure(1, together * rows)",
        "Encoding.HISTOGRAM: Exposure(1, contributions * rows)",
        "test_histogram.py::test_the_distance_is_that_of_the_worst_client",
    ),
    _mutation(
        "sketch-charged-as-a-histogram",
        "privacy/config.py",
        '("rows", rows), ("max_items", max_items), ("encoding", encoding)',
        '("rows", rows), ("max_items", max_items)',
        "test_histogram.py::test_a_plan_refuses_an_event_of_the_other_encoding",
    ),
    _mutation(
        "sketch-read-as-a-histogram",
        "privacy/events.py",
        "        if self.encoding is Encoding.HISTOGRAM:\n            self._check_histogram()\n",
        "",
        "test_histogram.py::test_an_event_of_a_histogram_is_no_event_of_a_sketch",
    ),
    _mutation(
        "histogram-counts-the-neighbour",
        "sketch/count_sketch.py",
        "places = ids - np.uint64(self.first_id)",
        "places = ids - np.uint64((self.first_id - 1) % 2**64)",
        "test_histogram.py::test_item_i_is_counter_i",
    ),
    _mutation(
        "histogram-takes-less-than-nothing",
        "campaign/server.py",
        "if plan.is_histogram and (least := int(row.min())) < -noise:",
        "if plan.is_histogram and (least := int(row.min())) < -noise - people:",
        "test_histogram.py::test_sums_that_no_clients_have_are_refused",
    ),
    # Geometric noise.
    _mutation(
        "geometric-sensitivity-of-one-half",
        "privacy/gaussian.py",
        "(math.nextafter(float(rate * shift), math.inf), number)",
        "(math.nextafter(float(rate * shift) / 2, math.inf), number)",
        "test_geometric.py::test_epsilon_without_a_delta_is_the_rate_times_the_distance",
    ),
    _mutation(
        "geometric-noise-of-half-the-size",
        "privacy/config.py",
        "return Geometric(self.event.noise_variance)",
        "return Geometric(self.event.noise_variance / 4)",
        "test_histogram.py::test_released_sums_have_the_noise_of_the_plan",
    ),
    _mutation(
        "geometric-zero-twice",
        "privacy/geometric.py",
        "kept = ~(is_negative & (sizes == 0))",
        "kept = np.ones(len(sizes), np.bool_)",
        "test_geometric.py::test_draws_have_the_distribution",
        "test_geometric.py::test_zero_has_one_sign",
    ),
    _mutation(
        "geometric-numbers-not-uniform",
        "privacy/geometric.py",
        "last = 2**64 - 2**64 % bound - 1",
        "last = 2**64 - 1",
        "test_geometric.py::test_numbers_below_a_bound_are_uniform",
    ),
    _mutation(
        "geometric-events-of-one-step",
        "privacy/geometric.py",
        "        k += 1\n    return happens\n",
        "        going, k = going[:0], k + 1\n    return happens\n",
        "test_geometric.py::test_an_event_happens_after_an_even_number_of_steps",
        "test_geometric.py::test_draws_have_the_distribution",
    ),
    _mutation(
        "geometric-words-again",
        "privacy/geometric.py",
        'self._key = Secret(words[:head].astype("<u8").tobytes())',
        "self._key = Secret(bytes(KEY_BYTES))",
        "test_geometric.py::test_no_word_serves_twice",
    ),
    _mutation(
        "geometric-rate-rounded-up",
        "privacy/geometric.py",
        "math.floor(rate * _UNIT)",
        "math.ceil(rate * _UNIT)",
        "test_geometric.py::test_a_rate_is_rounded_towards_more_noise",
    ),
    _mutation(
        "other-noise-without-a-delta",
        "privacy/accounting.py",
        "        if not event.mechanism.is_pure:\n            return math.inf\n",
        "        if not event.mechanism.is_pure:\n            continue\n",
        "test_geometric.py::test_beside_other_noise_they_compose_as_gaussians",
    ),
    _mutation(
        "epsilons-do-not-add-up",
        "privacy/accounting.py",
        "pure=_sum_above(self.pure, pure_epsilon(event)),",
        "pure=max(self.pure, pure_epsilon(event)),",
        "test_geometric.py::test_their_epsilons_add_up",
        "test_geometric.py::test_a_grant_pays_for_as_many_as_add_up_to_it",
    ),
    _mutation(
        "geometric-with-the-usual-sensitivity-of-replace-one",
        "privacy/accounting.py",
        "total = _sum_above(total, math.nextafter(number * loss, math.inf))",
        "total = _sum_above(total, math.nextafter(loss, math.inf))",
        "test_geometric.py::test_epsilon_without_a_delta_is_the_rate_times_the_distance",
    ),
    _mutation(
        "geometric-beside-others-costs-its-variance",
        "privacy/gaussian.py",
        "    return sum(number * bound_of_pure(loss) ** 2 for loss, number in pure_losses(event))",
        "    return event.l2_sensitivity**2 / event.noise_variance",
        "test_geometric.py::test_beside_other_noise_they_compose_as_gaussians",
    ),
    _mutation(
        "plan-without-a-delta-with-other-noise",
        "privacy/config.py",
        "    if not mechanism.is_pure:\n        return checked_delta(delta)\n",
        "    if not mechanism.is_pure:\n        return float(delta)\n",
        "test_geometric.py::test_refused",
    ),
    _mutation(
        "sketch-with-geometric-noise",
        "privacy/events.py",
        "        if self.mechanism.is_pure:\n            self._check_pure()\n",
        "",
        "test_geometric.py::test_refused",
    ),
    _mutation(
        "limits-with-the-tails-of-a-gaussian",
        "recovery/direct.py",
        "Mechanism.GEOMETRIC: _geometric_law,",
        "Mechanism.GEOMETRIC: _gaussian_law,",
        "test_histogram.py::test_the_law_is_that_of_what_is_drawn",
    ),
    _mutation(
        "limits-forget-a-server",
        "recovery/direct.py",
        "number * terms.noises_of_sum",
        "number",
        "test_histogram.py::test_the_law_is_that_of_what_is_drawn",
    ),
    _mutation(
        "histogram-taken-though-it-is-not-worth-it",
        "planner/encodings.py",
        "if found.linf**2 * cost < error**2 * draft.plan(*chosen).bytes_per_client:",
        "if error:",
        "test_histogram.py::test_a_histogram_that_is_larger_and_no_better_is_not_taken",
    ),
    _mutation(
        "number-costs-nothing",
        "privacy/events.py",
        "Relation.ADD_REMOVE: own + 1,",
        "Relation.ADD_REMOVE: own,",
        "test_events.py::test_sensitivities_by_schedule",
    ),
    _mutation(
        "planner-forgets-other-silos",
        "planner/privacy.py",
        "silos_per_person=each",
        "silos_per_person=1",
        "test_silos.py::test_a_sketch_is_sized_with_the_noise_that_its_plan_has",
    ),
    # What it is said to cost.
    _mutation(
        "accountant-generous",
        "privacy/loss_distribution.py",
        "    stddev = math.sqrt(variance)\n    # A Gaussian",
        "    variance *= 1.2345\n    stddev = math.sqrt(variance)\n    # A Gaussian",
        "test_accounting.py::test_rounding_gains_a_little",
    ),
    _mutation(
        "reserved-late",
        _ENGINE,
        _RELEASED,
        "\n".join(reversed(_RELEASED.split("\n"))),
        "test_private.py::test_it_is_reserved_before_noise_is_drawn_or_a_sum_opened",
    ),
    # The order that a deployment must keep.
    _mutation(
        "unmasked-unreserved",
        _SESSION_FILE,
        "                self._make_reservation()\n            self._commit()\n",
        "                pass\n            self._commit()\n",
        _RUNS,
    ),
    _mutation(
        "reserved-after-unmasking",
        _SESSION_FILE,
        "                self._make_reservation()\n            self._commit()\n           "
        " self._enter(following)\n",
        "                self._enter(following)\n                self._make_reservation()\n"
        "            self._commit()\n            self._enter(following)\n",
        _RUNS,
    ),
    _mutation(
        "restored-unreserved",
        _SESSION_FILE,
        "        if server.state in (ServerState.UNMASK, ServerState.DONE):\n",
        "        if server.state is ServerState.DONE:\n",
        _RUNS,
    ),
    _mutation(
        "asked-unreserved",
        _PAIR_FILE,
        "            self._check_batch(rounds, len(ids))\n            self._make_reservation()\n",
        "            self._check_batch(rounds, len(ids))\n",
        _RUNS,
    ),
    _mutation(
        "answered-unreserved",
        _PAIR_FILE,
        'are not held here"\n            )\n        self._make_reservation()\n',
        'are not held here"\n            )\n',
        _RUNS,
    ),
    _mutation(
        "landed-without-asking",
        _SERVER_FILE,
        "        if not write(sketch):\n",
        "        if write(sketch) is None:\n",
        _RUNS,
    ),
    _mutation(
        "landed-forgotten",
        _BOOKS_FILE,
        "            if self.has_landed(plan, session):\n",
        "            if False:\n",
        _RUNS,
    ),
    _mutation(
        "landed-from-elsewhere",
        _SERVER_FILE,
        "        if self._sessions.get(session.session) is not session:\n",
        "        if False:\n",
        _RUNS,
    ),
    _mutation(
        "released-exact",
        _SERVER_FILE,
        "        return release_sums(self.plan, self._books, random, used)\n",
        "        return self._books.sums(self.plan)\n",
        _RUNS,
    ),
    _mutation(
        "exact-without-randomness",
        _SERVER_FILE,
        "        if self.plan.privacy is None:\n            landed = ",
        "        if self.plan.privacy is None or random is None:\n            landed = ",
        _RUNS,
    ),
    _mutation(
        "released-into",
        _SERVER_FILE,
        "        if release_of(self.plan, sketch.round) in self._books.released(self.plan):\n",
        "        if False:\n",
        _RUNS,
    ),
    _mutation(
        "not-reserved",
        _ENGINE,
        _RELEASED,
        _RELEASED.replace("        charge(books, plan, number)\n", ""),
        "test_private.py::test_what_lands_is_what_the_ledger_keeps",
    ),
    _mutation(
        "charged-by-plan-alone",
        "store/ledger.py",
        "sa.select(known.event, known.total).where(known.population == grant.population)",
        "sa.select(known.event, known.total).where(known.plan == grant.population)",
        "test_store.py",
    ),
    _mutation(
        "second-campaign-free",
        "store/ledger.py",
        "    if total is None:\n        return Composition.of([",
        "    if True:\n        return Composition.of([",
        "test_store.py",
    ),
    _mutation(
        "two-bounds-at-the-price-of-one",
        "privacy/accounting.py",
        "        half = left / 2\n",
        "        half = left\n",
        "test_accounting.py",
    ),
    _mutation(
        "an-order-that-follows-the-grant",
        "store/ledger.py",
        "    return total.plus(charge.event)\n",
        "    from dataclasses import replace\n"
        "    from fedtally.privacy.accounting import filter_order\n"
        "    order = filter_order(charge.event, grant.epsilon, grant.delta)\n"
        "    return replace(total, order=order).plus(charge.event)\n",
        "test_store.py::test_the_order_is_that_of_the_first_campaign",
    ),
    _mutation(
        "divergence-of-a-wide-gaussian",
        "privacy/loss_distribution.py",
        "    logs = np.log(_distribution(pair.mechanism, pair.variance))\n",
        "    if pair.variance > 1:\n"
        "        return order * pair.shift**2 / (2 * pair.variance + 1)\n"
        "    logs = np.log(_distribution(pair.mechanism, pair.variance))\n",
        "test_accounting.py",
    ),
    _mutation(
        "one-round-too-many",
        "privacy/budget.py",
        "    if taken >= new.event.participations:\n",
        "    if taken > new.event.participations:\n",
        "test_budget.py",
    ),
    _mutation(
        "guarantee-not-checked",
        _TERMS,
        "        if found.epsilon > self.epsilon:\n",
        "        if found.epsilon > 2 * self.epsilon:\n",
        "test_privacy_config.py",
    ),
    _mutation(
        "certificate-blind",
        "privacy/events.py",
        "    return Collisions(max(one.opposite for one in found), max(one.excess for one in"
        " found))",
        "    return Collisions(0, 0)",
        *AUDIT,
    ),
    _mutation(
        "certificate-not-looked-up",
        _PLANNER,
        "    if found.opposite > said.opposite or found.excess > said.excess:\n",
        "    if False:\n",
        "test_private.py::test_a_certificate_is_looked_up_again",
    ),
    _mutation(
        "budget-not-compared",
        "privacy/budget.py",
        "    if cost.epsilon > most:\n",
        "    if cost.epsilon > 2 * most:\n",
        "test_budget.py",
    ),
    # Who may take part.
    _mutation(
        "proof-for-any-registrar",
        _ENROLMENT_FILE,
        "return _check_key(registrar=registrar), hashlib",
        "return bytes(32), hashlib",
        _ENROLMENT,
    ),
    _mutation(
        "proof-for-any-purpose",
        _ENROLMENT_FILE,
        "hashlib.sha256(text).digest()",
        "hashlib.sha256().digest()",
        _ENROLMENT,
    ),
    _mutation(
        "proof-of-another-registrar-taken",
        _ENROLMENT_FILE,
        "    fields = _proved(registrar, purpose)\n    # A client may",
        "    registrar = proof.registrar\n"
        "    fields = _proved(registrar, purpose)\n    # A client may",
        _ENROLMENT,
    ),
    _mutation(
        "proof-of-another-purpose-taken",
        _ENROLMENT_FILE,
        "    fields = _proved(registrar, purpose)\n    # A client may",
        "    purpose = proof.purpose\n    fields = _proved(registrar, purpose)\n    # A client may",
        _ENROLMENT,
    ),
    _mutation(
        "proof-not-verified",
        _ENROLMENT_FILE,
        "        verify(proof.identity, proof.signature, Label.POSSESSION, *fields)\n",
        "        assert fields\n",
        _ENROLMENT,
    ),
    _mutation(
        "identity-listed-twice",
        _ENROLMENT_FILE,
        "        if proof.identity in first:\n",
        "        if False:\n",
        _ENROLMENT,
    ),
    _mutation(
        "purpose-of-many-lines",
        _ENROLMENT_FILE,
        "not found.isprintable()",
        "False",
        _ENROLMENT,
    ),
    _mutation(
        "damaged-list-taken",
        _ENROLMENT_FILE,
        "    if allow_list.digest.hex() != found[1]:\n",
        "    if False:\n",
        _ENROLMENT,
    ),
    _mutation(
        "list-of-another-plan-taken",
        _ENROLMENT_FILE,
        "    if agreed.allow_list != allow_list.digest:\n",
        "    if False:\n",
        _ENROLMENT,
    ),
    _mutation(
        "list-shorter-than-a-cohort",
        _ENROLMENT_FILE,
        "    if len(allow_list) < least:\n",
        "    if False:\n",
        _ENROLMENT,
    ),
    _mutation(
        "list-of-a-plan-not-checked",
        "cli/keys.py",
        "            check_allow_list(keyed, self.allow_list)\n",
        "            assert check_allow_list\n",
        _ENROLMENT,
    ),
    _mutation(
        "list-not-checked-before-signing",
        "cli/keys.py",
        "        check_allow_list(loaded, load_allow_list(allow_list))\n",
        "        assert check_allow_list and load_allow_list\n",
        _ENROLMENT,
    ),
    _mutation(
        "sized-plan-signed-instead",
        _ENROLMENT_FILE,
        "    signature = key.sign(Label.SIGNED_PLAN, fingerprint, *authority.fields)\n",
        "    fingerprint = bytes.fromhex(plan.without_keys().fingerprint)\n"
        "    signature = key.sign(Label.SIGNED_PLAN, fingerprint, *authority.fields)\n",
        _ENROLMENT,
    ),
    _mutation(
        "plan-without-keys-signed",
        _ENROLMENT_FILE,
        "    plan.check_published()\n    fingerprint = ",
        "    fingerprint = ",
        _ENROLMENT,
    ),
    _mutation(
        "signature-of-anybody-taken",
        _ENROLMENT_FILE,
        """    _check_registrar(signature.registrar, registrar, "plan")\n""",
        "    registrar = signature.registrar\n",
        _ENROLMENT,
    ),
    _mutation(
        "signature-not-verified",
        _ENROLMENT_FILE,
        "        verify(registrar, signature.signature, Label.SIGNED_PLAN, *fields)\n",
        "        pass\n",
        _ENROLMENT,
    ),
    _mutation(
        "key-of-any-role",
        "campaign/key_files.py",
        "        if role not in (None, held):\n",
        "        if False:\n",
        "test_key_files.py::test_the_key_of_the_other_role_is_refused",
    ),
    _mutation(
        "list-over-a-key",
        _ENROLMENT_FILE,
        "    if _is_private_key(path):\n",
        "    if False:\n",
        _ENROLMENT,
    ),
    # Clients that do not come.
    _mutation(
        "noise-for-full-cohorts",
        "planner/secure_sum.py",
        "        n_min=n_min,\n",
        "        n_min=n_max,\n",
        _SIZES,
    ),
    _mutation(
        "survivors-of-full-cohorts",
        "secagg/proposal.py",
        "left = n_min - share_of(dropout, n_min, up=True)",
        "left = n_max - share_of(dropout, n_max, up=True)",
        _SIZES,
    ),
    _mutation(
        "ring-for-full-cohorts",
        "secagg/proposal.py",
        "    sizes = {n_min, n_max}\n    between = range(n_min, n_max + 1,",
        "    sizes = {n_max}\n    between = range(n_max, n_max + 1,",
        _SIZES,
    ),
    _mutation(
        "sizes-between-not-tried",
        "secagg/proposal.py",
        "for n in range(n_max, n_min - 1, -1)]",
        "for n in {n_min, n_max}]",
        _SIZES,
    ),
    # What a server that dies, or two servers, must not do.
    _mutation(
        "phase-unwritten",
        _DRIVER_FILE,
        "                self._store.save(self.plan, saved, asked)\n                live.saved",
        "                live.saved",
        f"{_DRIVER}::test_two_crashes_in_one_campaign_lose_nothing",
    ),
    _mutation(
        "asked-unwritten",
        _CAMPAIGNS_FILE,
        "            if asked:\n",
        "            if False:\n",
        f"{_DRIVER}::test_nobody_is_asked_twice_for_an_item",
    ),
    _mutation(
        "epoch-ignored",
        _CAMPAIGNS_FILE,
        '(_runs.c.plan == sa.bindparam("of")) & (_runs.c.epoch == sa.bindparam("epoch"))\n',
        '(_runs.c.plan == sa.bindparam("of"))\n',
        f"{_DRIVER}::test_a_process_that_was_overtaken_writes_nothing_and_says_nothing",
        f"{_DRIVER}::test_giving_up_overtakes_who_claimed_after_the_copy_was_made",
    ),
    _mutation(
        "version-ignored",
        _CAMPAIGNS_FILE,
        '_sessions.c.version == sa.bindparam("before")',
        'sa.bindparam("before") == sa.bindparam("before")',
        f"{_DRIVER}::test_a_version_is_written_once",
    ),
    _mutation(
        "copy-taken",
        _CAMPAIGNS_FILE,
        "            if marked is not None and writes < marked:\n",
        "            if False:\n",
        f"{_DRIVER}::test_a_file_that_was_put_back_is_refused_until_its_sessions_are_given_up",
    ),
    _mutation(
        "first-write-unmarked",
        _CAMPAIGNS_FILE,
        "    return writes > 0 and marked is None\n",
        "    return writes > 1 and marked is None\n",
        f"{_DRIVER}::test_the_first_write_of_all_is_refused_without_its_mark",
    ),
    _mutation(
        "newest-number-counts",
        _WRITES_FILE,
        "int(min(",
        "int(max(",
        _PUT_BACK,
    ),
    _mutation(
        "one-number",
        _WRITES_FILE,
        "_SET[number % 2], (number,)",
        "_SET[0], (number,)",
        _PUT_BACK,
    ),
    _mutation(
        "two-campaigns-a-file",
        _CAMPAIGNS_FILE,
        "            self._check_alone(connection, plan)\n",
        "",
        f"{_PUT_BACK}::test_a_file_is_for_one_campaign",
    ),
    _mutation(
        "two-moments-given-up",
        _CAMPAIGNS_FILE,
        'if damage == "ok" and not is_of_one_moment(',
        'if damage != "ok" and not is_of_one_moment(',
        f"{_PUT_BACK}::test_a_copy_with_pages_of_another_moment_is_not_given_up",
    ),
    _mutation(
        "claim-before-the-mark",
        _CAMPAIGNS_FILE,
        "            write_mark(place, plan.fingerprint, writes)\n            if row is None:\n",
        "            if row is None:\n"
        "                write_mark(place, plan.fingerprint, writes)\n",
        f"{_PUT_BACK}::test_a_campaign_whose_marks_were_lost_is_refused",
    ),
    _mutation(
        "write-before-the-mark",
        _CAMPAIGNS_FILE,
        "            self._bring_mark(self._own_writes(connection))\n",
        "            self._own_writes(connection)\n",
        f"{_PUT_BACK}::test_a_campaign_whose_marks_were_lost_is_refused",
    ),
    _mutation(
        "part-before-the-mark",
        _RECORD_FILE,
        "                self._write_mark(writes_of(driver_connection(connection)))\n",
        "",
        f"{_PUT_BACK}::test_a_record_is_refused",
    ),
    _mutation(
        "sums-left-by-a-failure",
        "campaign/release.py",
        "        books.release(plan, {})  # an earlier",
        "        pass  # an earlier",
        f"{_DRIVER}::test_a_release_that_failed_to_erase_is_repeated",
    ),
    _mutation(
        "mark-unwritten",
        _CAMPAIGNS_FILE,
        "        self._written = writes\n        write_mark(self._mark, self._name, writes)\n",
        "        self._written = writes\n",
        f"{_DRIVER}::test_a_file_that_was_put_back_is_refused_until_its_sessions_are_given_up",
    ),
    _mutation(
        "invited-uncharged",
        _DRIVER_FILE,
        "            charge(self._store, self.plan, self._releases[round])\n",
        "            pass\n",
        f"{_DRIVER}::test_a_campaign_is_charged_before_its_first_invite",
    ),
    _mutation(
        "checkpoint-kept",
        _DRIVER_FILE,
        "saved = replace(saved, checkpoint=None, clients=tuple(told), farewell=farewell)",
        "saved = replace(saved, clients=tuple(told), farewell=farewell)",
        f"{_DRIVER}::test_no_file_holds_a_checkpoint_after_landing_nor_an_exact_sum_after_release",
    ),
    _mutation(
        "released-sums-kept",
        _CAMPAIGNS_FILE,
        "                connection.executemany(_ERASE_SUMS, mine)\n",
        "                pass\n",
        f"{_DRIVER}::test_no_file_holds_a_checkpoint_after_landing_nor_an_exact_sum_after_release",
    ),
    _mutation(
        "sums-not-overwritten",
        "store/database.py",
        '"secure_delete = ON"',
        '"secure_delete = OFF"',
        f"{_DRIVER}::test_no_file_holds_a_checkpoint_after_landing_nor_an_exact_sum_after_release",
    ),
    _mutation(
        "sums-left-by-the-dead",
        _CAMPAIGNS_FILE,
        "        store._erase_released()\n",
        "",
        f"{_DRIVER}::test_a_process_that_died_in_its_release_leaves_no_exact_sum",
    ),
    _mutation(
        "spoken-after-an-error",
        _DRIVER_FILE,
        "        del self._live[session]\n        live.run.deadline_passed(self._now)\n",
        "        live.run.deadline_passed(self._now)\n",
        f"{_DRIVER}::test_after_an_error_of_the_store_clients_hear_nothing"
        "_until_the_session_is_restored",
    ),
    _mutation(
        "sum-given-up",
        _DRIVER_FILE,
        "                except InvalidInputError as error:\n",
        "                except Exception as error:\n"
        "                    self._finish(self._reject(_next(saved), ''))\n",
        f"{_DRIVER}::test_an_error_of_the_store_gives_up_no_sum_however_late_it_is",
    ),
    _mutation(
        "mark-set-back",
        _CAMPAIGNS_FILE,
        "        if writes < self._written:\n",
        "        if False:\n",
        f"{_DRIVER}::test_a_process_whose_file_is_put_back_stops_and_leaves_the_mark",
    ),
    _mutation(
        "jumps-followed",
        _DRIVER_FILE,
        "        if 0 < back <= JITTER:\n",
        "        if False:\n",
        f"{_DRIVER}::test_a_clock_that_jumps_to_and_fro_costs_nothing",
    ),
    _mutation(
        "epoch-given-twice",
        _CAMPAIGNS_FILE,
        ".values(epoch=writes + 1)",
        ".values(epoch=row.epoch + 1)",
        f"{_DRIVER}::test_giving_up_overtakes_who_claimed_after_the_copy_was_made",
    ),
    _mutation(
        "mark-not-missed",
        _CAMPAIGNS_FILE,
        "            if _lacks_mark(writes, marked):\n",
        "            if False:\n",
        f"{_DRIVER}::test_a_file_without_its_mark_is_refused",
    ),
    _mutation(
        "landed-without-its-name",
        _CAMPAIGNS_FILE,
        "        if _has_landed(connection, self._name, session):\n",
        "        if False:\n",
        f"{_DRIVER}::test_a_landing_counts_once",
    ),
    _mutation(
        "landed-beside-its-session",
        _CAMPAIGNS_FILE,
        "                return False\n            self._save(connection, session)\n",
        "                return False\n        with self._write() as connection:\n"
        "            self._save(connection, session)\n",
        f"{_DRIVER}::test_a_session_ends_and_lands_in_one_write",
    ),
    _mutation(
        "given-up-sums-kept",
        _CAMPAIGNS_FILE,
        "plan.privacy.event.trust is Trust.CENTRAL:",
        "False:",
        f"{_DRIVER}::test_giving_up_under_central_trust_erases_exact_sums",
    ),
    # The agent: what its owner demands, and what its record knows.
    _mutation(
        "agent-without-policy",
        _AGENT_FILE,
        "    yield from policy.refusals(campaign.plan, campaign.allow_list, own)\n",
        "",
        f"{_AGENT}::test_every_line_of_the_policy_refuses",
    ),
    _mutation(
        "agent-asks-no-record-at-the-invite",
        _AGENT_FILE,
        "        if refusal is not None:\n            return AbortCode.ITEM",
        "        if False:\n            return AbortCode.ITEM",
        f"{_AGENT}::test_a_round_that_the_client_took_part_in_is_refused_at_the_invite",
    ),
    _mutation(
        "agent-displaces-any-session",
        _AGENT_FILE,
        "    return live.client.state is ClientState.ADVERTISED\n",
        "    return True\n",
        f"{_AGENT}::test_where_all_sessions_dealt_shares_an_invite_waits",
    ),
    _mutation(
        "agent-counts-no-sessions",
        _AGENT_FILE,
        "if begun >= (most := self._policy.sessions_a_day):",
        "if begun > (most := self._policy.sessions_a_day):",
        f"{_AGENT}::test_a_day_has_so_many_sessions",
    ),
    # What an agent does before it has checked who asks, and what its answers tell by their time.
    _mutation(
        "agent-reads-before-its-record-knows",
        _AGENT_FILE,
        "        live.last = seen\n        reply = self._go_on(",
        "        live.items.read(invite.round, self._random)\n"
        "        live.last = seen\n        reply = self._go_on(",
        _EARLY_WORK,
    ),
    _mutation(
        "agent-reads-before-all-checks",
        _AGENT_FILE,
        "            refusal = self._refusal(campaign, invite, journal, now)\n",
        "            self._items.read(plan)\n"
        "            refusal = self._refusal(campaign, invite, journal, now)\n",
        _EARLY_WORK,
    ),
    _mutation(
        "agent-keeps-the-invite-waiting-for-its-items",
        _AGENT_FILE,
        "return not self._is_made and (self._plan.privacy is None or kind is Kind.INBOX)",
        "return not self._is_made",
        f"{_EARLY_WORK}::test_a_reading_that_hangs_keeps_no_session_waiting",
    ),
    _mutation(
        "agent-stays-away-where-items-cannot-be-read",
        _AGENT_FILE,
        "            if self._plan.privacy is None:\n                raise\n",
        "            raise\n",
        _EARLY_WORK,
    ),
    _mutation(
        "agent-tells-when-its-items-were-read",
        _AGENT_FILE,
        "in_steps=self._plan.privacy is not None",
        "in_steps=False",
        f"{_EARLY_WORK}::test_the_moment_of_the_vector_does_not_tell_how_long_the_items_took",
    ),
    _mutation(
        "agent-takes-items-that-came-too-late",
        _READING_FILE,
        "found if self._took < self._seconds else self._too_late()",
        "found",
        "test_agent_reading.py::test_what_comes_too_late_never_comes",
    ),
    _mutation(
        "agent-keeps-the-items-of-a-session-that-is-over",
        _AGENT_FILE,
        "        self.client.abandon()\n        self.items.drop()\n",
        "        self.client.abandon()\n",
        f"{_EARLY_WORK}::test_a_session_that_ends_lets_its_items_go",
    ),
    _mutation(
        "agent-takes-old-frames",
        _AGENT_FILE,
        "        if seen in live.earlier:\n",
        "        if False:\n",
        f"{_AGENT}::test_a_frame_that_comes_again_gets_the_same_bytes_also_after_the_end",
    ),
    _mutation(
        "agent-forgets-its-last-answer",
        _AGENT_FILE,
        "            if seen == ended.last:\n",
        "            if False:\n",
        f"{_AGENT}::test_a_frame_that_comes_again_gets_the_same_bytes_also_after_the_end",
    ),
    _mutation(
        "agent-keeps-secrets-after-the-end",
        _AGENT_FILE,
        "                del self._live[session]\n                live.abandon()\n",
        "                del self._live[session]\n",
        f"{_AGENT}::test_a_session_ends_with_its_time_and_frees_its_place",
    ),
    _mutation(
        "agent-raises",
        _AGENT_FILE,
        "        except Exception as error:  # for the owner; the server learns nothing by it\n",
        "        except FedtallyError as error:\n",
        f"{_AGENT}::test_not_even_a_bug_leaves_answer",
    ),
    _mutation(
        "agent-logs-values",
        _AGENT_FILE,
        "    if isinstance(error, FedtallyError):\n        return str(error)\n",
        "    if error:\n        return str(error)\n",
        f"{_AGENT}::test_items_that_cannot_be_read_show_nothing",
    ),
    _mutation(
        "agent-without-cap",
        _AGENT_FILE,
        "    if policy.cap is not None and policy.cap != record.capped():\n",
        "    if False:\n",
        f"{_AGENT}::test_the_cap_of_the_owner_is_over_everything",
    ),
    _mutation(
        "agent-without-label",
        _AGENT_FILE,
        "    if policy.cap is None and once is None:\n",
        "    if False:\n",
        f"{_AGENT}::test_without_an_epsilon_items_have_a_label",
    ),
    _mutation(
        "agent-takes-any-adversary",
        "agent/policy.py",
        "and self.sums.adversary is Adversary.SEMI_HONEST:",
        "and self.sums.adversary:",
        f"{_AGENT}::test_every_line_of_the_policy_refuses",
    ),
    _mutation(
        "agent-trusts-the-server-with-sums",
        "agent/policy.py",
        "and not self.central:",
        "and False:",
        f"{_AGENT}::test_every_line_of_the_policy_refuses",
    ),
    _mutation(
        "agent-lets-its-client-trust-the-server",
        "agent/policy.py",
        "trust=Trust.CENTRAL if self.central else Trust.DISTRIBUTED",
        "trust=Trust.CENTRAL",
        f"{_AGENT}::test_the_client_that_joins_demands_the_owners_trust",
    ),
    _mutation(
        "agent-knows-nobody",
        "secagg/params.py",
        "        if found < self.least_known:\n",
        "        if False:\n",
        f"{_AGENT}::test_every_line_of_the_policy_refuses",
    ),
    _mutation(
        "agent-knows-itself",
        "agent/policy.py",
        "if key in allow_list and key != own]",
        "if key in allow_list]",
        "test_known.py::test_ones_own_key_is_no_client_that_one_knows",
    ),
    _mutation(
        "known-clients-of-the-list-alone",
        "secagg/client.py",
        "        self._check_known(self._opened, AbortCode.TOO_FEW_OPENED)\n",
        "",
        "test_known.py::test_a_roster_that_leaves_known_clients_out_gets_no_vector",
    ),
    _mutation(
        "known-clients-whose-shares-do-not-open",
        "secagg/client.py",
        "self._check_known(self._opened, ",
        "self._check_known(self._present, ",
        "test_known.py::test_shares_of_a_known_client_that_do_not_open_are_none",
    ),
    _mutation(
        "known-clients-that-are-alive-alone",
        "secagg/client.py",
        "self._check_known(near & self._opened, ",
        "self._check_known(near, ",
        "test_known.py::test_shares_of_a_known_client_that_do_not_open_are_none",
    ),
    _mutation(
        "known-clients-that-are-gone",
        "secagg/client.py",
        "        self._check_known(near & self._opened, AbortCode.BELOW_MIN_SURVIVORS)\n",
        "",
        "test_known.py::test_a_known_client_that_drops_out_after_its_shares_is_none_in_the_sum",
    ),
    _mutation(
        "known-clients-without-keys",
        "secagg/params.py",
        "        if self.least_known and parameters.adversary is Adversary.SEMI_HONEST:\n",
        "        if False:\n",
        "test_known.py::test_a_plan_whose_clients_have_no_keys_is_refused",
    ),
    _mutation(
        "agent-asks-no-registrar",
        "agent/accepted.py",
        "            check_signature(signature, plan, registrar)\n",
        "            pass\n",
        "test_agent_settings.py::test_a_plan_must_be_signed_by_the_registrar_that_is_pinned",
    ),
    # Authority that ends.
    _mutation(
        "ended-plan-answered",
        _RECORD_FILE,
        """                return "its registrar replaced or revoked it"\n""",
        "                pass\n",
        _AUTHORITY,
    ),
    _mutation(
        "plan-answered-that-nobody-accepted",
        _RECORD_FILE,
        "            if connection.exec_driver_sql(_LAST_OF_PLAN, row).scalar_one() != number:\n",
        "            if False:\n",
        _AUTHORITY,
    ),
    _mutation(
        "plan-that-is-over-joined",
        _AGENT_FILE,
        "        if why := campaign.why_over(self._record, now):\n",
        "        if why := None:\n",
        _AUTHORITY,
    ),
    _mutation(
        "plan-that-ends-in-a-session-gets-items",
        _AGENT_FILE,
        "        return campaign.why_over(self._record, now)\n",
        "        return None\n",
        f"{_AGENT}::test_a_plan_that_ends_within_a_session_gets_no_items",
    ),
    _mutation(
        "last-day-without-an-end",
        "agent/accepted.py",
        "        if last is None or now < end_of(last):\n",
        "        if True:\n",
        _AUTHORITY,
    ),
    _mutation(
        "ended-by-any-registrar",
        _RECORD_FILE,
        """    return {"registrar": registrar.hex(), "plan": plan}\n""",
        """    return {"registrar": "anybody", "plan": plan}\n""",
        _AUTHORITY,
    ),
    _mutation(
        "older-number-accepted",
        _RECORD_FILE,
        """        if last is None or last.number < row["number"]:\n""",
        """        if last is None or last.number != row["number"]:\n""",
        _AUTHORITY,
    ),
    _mutation(
        "ended-plan-accepted-again",
        _RECORD_FILE,
        """            raise InvalidInputError(
                f"plan {row['plan']} was replaced or revoked by its registrar""",
        """            InvalidInputError(
                f"plan {row['plan']} was replaced or revoked by its registrar""",
        _AUTHORITY,
    ),
    _mutation(
        "end-forgotten-by-an-old-copy",
        _RECORD_FILE,
        "            if new:\n                count_write(driver_connection(connection))\n",
        "            if new:\n",
        _AUTHORITY,
    ),
    _mutation(
        "number-forgotten-by-an-old-copy",
        _RECORD_FILE,
        "            if self._check_accept(connection, row):\n"
        "                count_write(driver_connection(connection))\n",
        "            if self._check_accept(connection, row):\n",
        _AUTHORITY,
    ),
    _mutation(
        "ended-only-if-the-new-plan-is-taken",
        "cli/agent.py",
        "        _end(settings, campaign.signature.authority.replaces, now)\n",
        "        pass\n",
        _AUTHORITY,
    ),
    _mutation(
        "revocation-of-anybody-taken",
        "cli/agent.py",
        "    check_revocation(revocation, settings.registrar)\n",
        "    assert check_revocation\n",
        _AUTHORITY,
    ),
    _mutation(
        "authority-not-signed",
        _ENROLMENT_FILE,
        "    signature = key.sign(Label.SIGNED_PLAN, fingerprint, *authority.fields)\n",
        "    Authority.fields = ()  # type: ignore[assignment]\n"
        "    signature = key.sign(Label.SIGNED_PLAN, fingerprint, *authority.fields)\n",
        _ENROLMENT,
    ),
    # What was shown is what is stored.
    _mutation(
        "accepted-as-the-file-is-by-now",
        "cli/agent.py",
        "    known.accept(campaign, record, now)\n",
        "    campaign = dataclasses.replace(files, until=last_day).load(settings.registrar)\n"
        "    known.accept(campaign, record, now)\n",
        _ACCEPT,
    ),
    _mutation(
        "signed-as-the-file-is-by-now",
        "cli/keys.py",
        "    save_signature(output, signature)\n",
        "    said = signature.authority\n"
        "    save_signature(output, sign_plan(load_registrar_key(key), Plan.load(plan), said))\n",
        _ACCEPT,
    ),
    _mutation(
        "first-digits-of-a-fingerprint-pin-it",
        "cli/plan_facts.py",
        """    if not re.fullmatch("[0-9a-f]{64}", given := given.lower()):\n""",
        "    if plan.fingerprint.startswith(given):\n        return\n    if False:\n",
        _ACCEPT,
    ),
    _mutation(
        "first-digits-shown-before-a-yes",
        "cli/plan_facts.py",
        """        ("Fingerprint", plan.fingerprint),\n""",
        """        ("Fingerprint", plan.fingerprint[:16]),\n""",
        _ACCEPT,
    ),
    _mutation(
        "a-plan-drives-the-terminal",
        "report/terminal.py",
        "escaped(text) if isinstance(text, str) else text)\n",
        "text)\n",
        _ACCEPT,
    ),
    _mutation(
        "a-kind-of-candidates-in-any-letters",
        "plan.py",
        "            if not (text.isascii() and text.isprintable()):\n",
        "            if False:\n",
        _ACCEPT,
    ),
    _mutation(
        "agent-lets-anybody-connect",
        "agent/serve.py",
        "            if uid not in self._peers:\n",
        "            if False:\n",
        "test_agent_serve.py::test_users_who_are_not_named_are_refused",
    ),
    _mutation(
        "agent-takes-any-text-unasked",
        "agent/policy.py",
        "    domains: tuple[str, ...] = KINDS\n",
        "    domains: tuple[str, ...] = _NAMED\n",
        "test_open_engines.py::test_an_owner_must_allow_any_text",
    ),
    _mutation(
        "agent-in-small-sums-of-any-text",
        "agent/policy.py",
        "        if plan.is_open and plan.privacy is None:\n",
        "        if False:\n",
        "test_open_engines.py::test_agents_without_privacy_need_large_sums",
    ),
    _mutation(
        "open-plan-of-small-sums",
        "planner/open_domain.py",
        "    if rare is not None and not search.allow_rare_names:\n",
        "    if False:\n",
        "test_open_planner.py::test_sums_that_show_single_clients_are_not_planned",
    ),
    _mutation(
        "open-list-is-the-input",
        "engines/local/estimate.py",
        "        check_list(data, dictionary)\n",
        "        pass\n",
        "test_open_plans.py::test_lists_that_cannot_be_used",
    ),
    _mutation(
        "agent-in-an-open-folder",
        "agent/serve.py",
        "    if others_may_write(found, os.geteuid()):\n",
        "    if found.uid not in (0, os.geteuid()):\n",
        "test_agent_serve.py::test_what_is_no_place_for_a_socket_is_refused_in_words",
    ),
    # What a peer sees of the items without the agent, and what others may write.
    _mutation(
        "agent-with-items-open-to-its-peers",
        "agent/settings.py",
        "            table.make(entry, partial(permissions.check_closed, place / name))\n",
        "            pass\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-reads-a-file-that-was-opened",
        "agent/settings.py",
        "        watch = partial(permissions.reading, place / file)\n",
        "        watch = __import__('contextlib').nullcontext\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-reads-a-database-that-was-opened",
        "agent/settings.py",
        "        watch = partial(permissions.reading, place / sqlite)\n",
        "        watch = __import__('contextlib').nullcontext\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-reads-another-file-than-it-looked-at",
        _PERMISSIONS,
        "                if after.end.number != before.end.number:\n",
        "                if False:\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-shows-how-long-its-items-are",
        _PERMISSIONS,
        '            raise InvalidInputError(\n                f"{who} search',
        '            str(\n                f"{who} search',
        "test_peers.py",
    ),
    _mutation(
        "agent-forgets-the-group-of-its-socket",
        _PERMISSIONS,
        "        shared = self._groups_of_the_socket()\n",
        "        shared = frozenset()\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-forgets-groups-around-its-socket",
        _PERMISSIONS,
        " or not seen.st_mode & stat.S_IXOTH:\n",
        ":\n",
        "test_agent_permissions.py::test_the_groups_that_a_peer_needs_are_those_of_every_peer",
    ),
    _mutation(
        "agent-overlooks-the-groups-of-its-peers",
        _PERMISSIONS,
        "User(uid, shared | _groups_of(uid))",
        "User(uid, shared)",
        "test_agent_permissions.py::test_the_groups_that_the_system_lists_are_those_of_a_user",
    ),
    _mutation(
        "agent-overlooks-acls",
        _PERMISSIONS,
        "        for seen in (folder, file):\n",
        "        for seen in ():\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-takes-an-acl-for-a-mode",
        _PERMISSIONS,
        "    in_group = seen.gid in user.groups or seen.has_acl\n",
        "    in_group = seen.gid in user.groups\n",
        "test_agent_permissions.py::test_the_rights_of_a_user",
    ),
    _mutation(
        "agent-believes-what-others-may-write",
        "agent/settings.py",
        "    problems = permissions.kept(own=[*files, *folders])\n",
        "    problems = []\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-takes-a-peer-for-its-user",
        _PERMISSIONS,
        "(0 if holder in peers else holder)",
        "holder",
        "test_peers.py",
    ),
    _mutation(
        "agent-overlooks-other-names-of-its-items",
        _PERMISSIONS,
        "        if file.links > 1:\n",
        "        if False:\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-shows-its-labels",
        "agent/settings.py",
        '    problems += permissions.unread(path, places["record"])',
        "    problems += []",
        "test_peers.py",
    ),
    _mutation(
        "agent-overlooks-the-folders-around-its-files",
        _PERMISSIONS,
        "                    for seen in way.passed:\n",
        "                    for seen in (around, way.end):\n",
        "test_peers.py",
    ),
    _mutation(
        "agent-believes-files-of-somebody-else",
        _PERMISSIONS,
        "    if seen.uid not in (0, owner):\n        return True\n",
        "",
        "test_peers.py",
    ),
    _mutation(
        "agent-lets-its-group-write-though-peers-are-in-it",
        _PERMISSIONS,
        "if not self.peers and _is_alone",
        "if _is_alone",
        "test_agent_permissions.py",
    ),
    _mutation(
        "agent-runs-code-that-others-may-write",
        "agent/settings.py",
        "of_python(python, permissions.check_kept)",
        "of_python(python)",
        "test_peers.py",
    ),
    _mutation(
        "agent-believes-keys-that-others-may-write",
        "agent/settings.py",
        "    permissions.check_kept(place / text)\n",
        "",
        "test_peers.py",
    ),
    _mutation(
        "agent-believes-candidates-that-others-may-write",
        "agent/settings.py",
        "    permissions.check_kept(path)\n",
        "",
        "test_peers.py",
    ),
    # Root on the SuperLink asks for two sums, with the frames and the key of the server.
    _mutation(
        "agent-answers-two-bitmaps",
        "secagg/messages.py",
        "    for adversary, steps in EXCHANGES.items()\n}\n",
        _TRANSITIONS_WITHOUT_AN_END,
        "test_agent_attacks.py::test_no_lie_teaches_more_than_the_claim",
        "test_flower_root.py::test_a_server_that_asks_twice_gets_one_sum",  # where flwr is
    ),
    _mutation(
        "record-unmarked",
        _RECORD_FILE,
        "            self._write_mark(writes)\n",
        "",
        "test_store.py::test_a_record_is_behind_its_mark_where_a_copy_was_put_back",
    ),
    _mutation(
        "mark-falls",
        _RECORD_FILE,
        "        with nullcontext() if self._mark is None else hold_mark(self._mark):\n",
        "        with nullcontext():\n",
        "test_store.py::test_a_mark_never_falls_where_two_agents_share_a_record",
        "test_store.py::test_of_two_copies_of_a_record_one_writes",
    ),
    _mutation(
        "copy-runs-on",
        _CAMPAIGNS_FILE,
        "        if marked is not None and marked > writes:\n",
        "        if False:\n",
        f"{_DRIVER}::test_of_two_processes_on_two_copies_of_the_file_one_stops",
    ),
    _mutation(
        "copies-read-the-mark-at-once",
        _CAMPAIGNS_FILE,
        "        with hold_mark(self._mark), self._write_held() as connection:\n",
        "        with self._write_held() as connection:\n",
        f"{_DRIVER}::test_a_write_waits_for_the_process_that_holds_the_mark",
    ),
    _mutation(
        "copies-release-twice",
        _CAMPAIGNS_FILE,
        _COUNTS_THE_RELEASE,
        "",
        f"{_DRIVER}::test_of_two_processes_on_two_copies_of_exact_sums_one_releases_them",
        f"{_DRIVER}::test_of_a_release_that_was_cut_off_no_copy_makes_another",
    ),
    _mutation(
        "release-lands-uncounted",
        _CAMPAIGNS_FILE,
        _COUNTS_THE_RELEASE,
        "            with self._campaigns._sqlite(write=False) as connection:\n"
        "                self._bring_mark(self._own_writes(connection))\n",
        f"{_DRIVER}::test_of_a_release_that_was_cut_off_no_copy_makes_another",
    ),
    _mutation(
        "release-without-the-mark",
        _CAMPAIGNS_FILE,
        f"        with hold_mark(self._mark):\n{_COUNTS_THE_RELEASE}",
        f"        if True:\n{_COUNTS_THE_RELEASE}",
        f"{_DRIVER}::test_of_two_processes_on_two_copies_of_exact_sums_one_releases_them",
    ),
    _mutation(
        "old-process-runs-on",
        _CAMPAIGNS_FILE,
        ".values(epoch=_runs.c.epoch + 1, writes=0)",
        ".values(epoch=_runs.c.epoch)",
        "test_migrations.py::test_a_process_of_an_earlier_version_that_still_runs_writes_no_more",
    ),
    _mutation(
        "migration-counts-a-write",
        _CAMPAIGNS_FILE,
        "connection.execute(largest).scalar_one())",
        "connection.execute(largest).scalar_one() + 1)",
        "test_migrations.py::test_a_copy_of_an_earlier_schema_without_the_last_write_is_refused",
    ),
    _mutation(
        "migrated-epoch-given-twice",
        _CAMPAIGNS_FILE,
        ".values(epoch=writes + 1)",
        ".values(epoch=writes)",
        "test_migrations.py::test_giving_up_overtakes_who_claimed_after_a_migration",
    ),
    _mutation(
        "speaks-ahead-of-the-mark",
        _CAMPAIGNS_FILE,
        "        if self._marked != writes:\n",
        "        if False:\n",
        f"{_DRIVER}::test_nobody_hears_of_a_write_that_the_mark_does_not_count",
    ),
    _mutation(
        "overtaken-asleep-speaks",
        _DRIVER_FILE,
        "                self._store.check_claim(self.plan)\n",
        "                pass\n",
        f"{_DRIVER}::test_a_process_that_was_overtaken_while_it_was_suspended_says_nothing",
    ),
    _mutation(
        "record-behind-its-mark",
        _RECORD_FILE,
        "        if writes < marked:\n",
        "        if False:\n",
        f"{_AGENT}::test_a_record_that_was_put_back_is_refused_running_or_at_the_start",
    ),
    _mutation(
        "record-without-a-mark",
        _RECORD_FILE,
        "        if marked is None:  # an empty record, too: it may be the copy of the first day\n",
        "        if False:\n",
        f"{_AGENT}::test_a_record_without_its_mark_is_refused",
    ),
    _mutation(
        "part-unmarked",
        _RECORD_FILE,
        "        with self._marked() as connection:\n            self._check_part(",
        "        with self._transaction(write=True) as connection:\n            self._check_part(",
        f"{_AGENT}::test_a_vector_leaves_only_once_the_mark_counts_it",
    ),
    # Proofs of valid vectors: what hides the vector, what is proven.
    _mutation(
        "proof-without-seeds",
        _FLP_FILE,
        "        wires[..., 0, :, :] = seeds\n",
        "",
        "test_flp_proof.py",
    ),
    _mutation(
        "proof-at-a-root",
        _FLP_FILE,
        "self.field.power(point, self.nodes) != one",
        "self.field.power(point, 1) != one",
        "test_flp_proof.py",
    ),
    _mutation(
        "proof-not-decided",
        _FLP_FILE,
        "(verifier[..., 0, :] == 0).all(-1) & (product == verifier[..., -1, :]).all(-1)",
        "(product == verifier[..., -1, :]).all(-1)",
        "test_flp_proof.py",
    ),
    _mutation(
        "point-of-a-batch",
        _PROOFS_FILE,
        "hkdf(verify_key, joint, Label.TWO_SERVER_POINT)",
        "hkdf(verify_key, joint, Label.TWO_SERVER_POINT + bytes([len(shares)]))",
        _PROOFS,
    ),
    _mutation(
        "point-without-the-proof",
        _PROOFS_FILE,
        "*bound.fields, *share.digests)",
        "*bound.fields, *share.digests[:2])",
        _PROOFS,
    ),
    _mutation(
        "point-of-any-key",
        _REPORTS_FILE,
        "if key.public != (self.leader_key if is_leader else self.helper_key):",
        "if False:",
        _PROOFS,
    ),
    _mutation(
        "point-of-any-encoding",
        "crypto/hpke.py",
        "        secret[0] &= 248\n",
        "",
        f"{_PROOFS}::test_there_is_one_verify_key",
    ),
    _mutation(
        "verify-key-of-all-plans",
        _PROOFS_FILE,
        "derive(self.context, Label.TWO_SERVER_VERIFY_KEY)",
        "derive(bytes(KEY_BYTES), Label.TWO_SERVER_VERIFY_KEY)",
        "test_validity_vectors.py",
    ),
    _mutation(
        "report-of-any-circuit",
        _PROOFS_FILE,
        "if bound.context != self.context:",
        "if False:",
        f"{_PROOFS}::test_a_report_has_one_circuit",
    ),
    _mutation(
        "proof-mask-of-the-id",
        _PROOFS_FILE,
        "hkdf(seed, joint, Label.TWO_SERVER_PROOF_MASK)",
        "hkdf(seed, bytes(KEY_BYTES), Label.TWO_SERVER_PROOF_MASK)",
        f"{_PROOFS}::test_a_report_that_is_sealed_anew_shows_nothing",
    ),
    _mutation(
        "wire-seeds-of-the-id",
        _PROOFS_FILE,
        "hkdf(prove_seed, joint, Label.TWO_SERVER_PROVE)",
        "hkdf(prove_seed, bound.id, Label.TWO_SERVER_PROVE)",
        f"{_PROOFS}::test_a_report_that_is_sealed_anew_shows_nothing",
    ),
    _mutation(
        "proof-of-unsigned-parts",
        _PROOFS_FILE,
        "verify(bound.identity, signature, Label.TWO_SERVER_REPORT, *bound.fields, *digests)",
        "pass",
        _PROOFS,
    ),
    _mutation(
        "prove-seed-kept",
        _PROOFS_FILE,
        "                secrets.callback(secret.wipe)\n",
        "",
        f"{_PROOFS}::test_secrets_are_wiped_after_use",
    ),
    _mutation(
        "point-at-a-root",
        _PROOFS_FILE,
        "while not self.flp.is_test_point(drawn[i, -1]):",
        "while not count:",
        _PROOFS,
    ),
    _mutation(
        "proof-of-any-circuit",
        _REPORTS_FILE,
        "bytes([VERSION]), terms, rows)",
        "bytes([VERSION]), terms)",
        _PROOFS,
    ),
    _mutation(
        "leaders-share-in-the-clear",
        _REPORTS_FILE,
        "leader._replace(payload=sealed)",
        "leader._replace(payload=leader.payload + bytes(hpke.OVERHEAD_BYTES))",
        f"{_PAIR}::test_who_carries_a_report_reads_no_share",
    ),
    _mutation(
        "leaders-share-for-the-helper",
        _REPORTS_FILE,
        "parameters.leader_key, share, Label",
        "parameters.helper_key, share, Label",
        f"{_PAIR}::test_who_carries_a_report_reads_no_share",
    ),
    _mutation(
        "share-sealed-for-any-report",
        _REPORTS_FILE,
        "Label.TWO_SERVER_SHARE, *leader.bound.fields",
        "Label.TWO_SERVER_SHARE",
        f"{_PAIR}::test_who_carries_a_report_reads_no_share",
    ),
    _mutation(
        "one-key-for-two-servers",
        _REPORTS_FILE,
        "if self.leader_key == self.helper_key:",
        "if False:",
        _PAIR,
    ),
    _mutation(
        "time-not-signed",
        _REPORTS_FILE,
        "return self.context, self.nonce, round, self.identity, time",
        "return self.context, self.nonce, round, self.identity",
        f"{_PAIR}::test_nobody_makes_an_old_report_younger",
    ),
    _mutation(
        "id-that-a-client-chooses",
        _REPORTS_FILE,
        "return digest(Label.TWO_SERVER_ID, *self.fields)[:ID_BYTES]",
        "return self.nonce",
        f"{_PAIR}::test_nobody_can_take_the_id_of_another_report",
    ),
    _mutation(
        "recorded-answer-of-other-noise",
        _PAIR_FILE,
        "            self._check_noise_source(self._journal.kept(self._name_of_noise()))\n"
        "            self._make_reservation()\n",
        "            self._make_reservation()\n",
        f"{_PAIR}::test_a_helper_does_not_send_what_another_source_noised",
    ),
    _mutation(
        "nothing-taken-for-no-noise",
        _CHECKS_FILE,
        "        parameters.check_noise(drawn)\n",
        "",
        f"{_PAIR}::test_a_source_that_draws_nothing_opens_nothing",
    ),
    _mutation(
        "two-reports-of-one-id",
        _PAIR_FILE,
        "(self._name_of_id(id), name)",
        "(name,)",
        "test_proven.py::test_of_two_reports_of_one_id_one_is_taken",
    ),
    _mutation(
        "key-of-two-plans",
        _PAIR_FILE,
        'if journal.keep(b"key" + key.public, self._context) != self._context:',
        "if False:",
        f"{_PAIR}::test_a_key_is_that_of_one_plan",
    ),
    _mutation(
        "policy-takes-reports-without-proofs",
        _REPORTS_FILE,
        "if self.validity is Validity.PROOFS and not has_proofs:",
        "if False:",
        _PAIR,
    ),
    _mutation(
        "old-report-taken",
        _PAIR_FILE,
        "now - self._max_age <= part.bound.time <= now + CLOCK_SKEW",
        "part.bound.time <= now + CLOCK_SKEW",
        f"{_PAIR}::test_a_report_is_taken_until_it_is_too_old",
    ),
    _mutation(
        "acknowledged-report-missed",
        _PAIR_FILE,
        "            self._state = BatchState.STOPPED\n",
        "            pass\n",
        f"{_PAIR}::test_no_report_that_both_servers_accepted_is_missed",
    ),
    _mutation(
        "report-taken-after-the-stop",
        _PAIR_FILE,
        """        if self._state is not BatchState.COLLECTING:
            return Outcome.ACCEPTED if""",
        """        if self._state not in (BatchState.COLLECTING, BatchState.STOPPED):
            return Outcome.ACCEPTED if""",
        f"{_PAIR}::test_no_report_that_both_servers_accepted_is_missed",
    ),
    _mutation(
        "report-of-tomorrow-taken",
        _PAIR_FILE,
        "now - self._max_age <= part.bound.time <= now + CLOCK_SKEW",
        "now - self._max_age <= part.bound.time",
        f"{_PAIR}::test_a_report_is_taken_until_it_is_too_old",
    ),
    _mutation(
        "proven-batch-of-few",
        _PROOFS_FILE,
        "if not low <= len(shares) <= high:",
        "if not 1 <= len(shares) <= high:",
        _PROOFS,
    ),
    _mutation(
        "proven-report-twice",
        _PROOFS_FILE,
        "if len(ids) < len(shares):",
        "if not ids:",
        _PROOFS,
    ),
    _mutation(
        "proven-sum-without-noise",
        _REPORTS_FILE,
        "if (noise is None) != (self.noise == 0):",
        "if False:",
        _PROOFS,
    ),
    _mutation(
        "proven-noise-of-any-size",
        _PROOFS_FILE,
        "            entries_within(parameters.length, parameters.noise, noise=noise)\n",
        "",
        _PROOFS,
    ),
    _mutation(
        "unjudged-report-counted",
        _PAIR_FILE,
        "return id in self._valid",
        "return id in self._held",
        "test_proven.py",
    ),
    _mutation(
        "second-check-read",
        _PAIR_FILE,
        "if id in self._held and id not in self._valid",
        "if id in self._held",
        "test_proven.py",
    ),
    _mutation(
        "proven-reports-of-plain-context",
        _CHECKS_FILE,
        "proof, proof.parameters, proof.context",
        "proof, proof.parameters, proof.parameters.context",
        "test_proven.py",
    ),
    _mutation(
        "refused-report-kept",
        _PAIR_FILE,
        "if verdict is Verdict.VALID:",
        "if True:",
        _PROVEN_CAMPAIGN,
    ),
    _mutation(
        "helper-checks-nothing",
        _PAIR_FILE,
        "ids, frames = sorted(self._held), []",
        "ids, frames = sorted(self._held)[:0], []",
        _PROVEN_CAMPAIGN,
    ),
    _mutation(
        "refused-forgotten",
        _PAIR_FILE,
        'message + b"".join(refused)',
        "message",
        f"{_PROVEN_CAMPAIGN}::test_servers_that_restart_at_any_step_land_the_same_and_name_the_same",
    ),
    _mutation(
        "proven-noise-of-another-modulus",
        _PROOFS_FILE,
        "field.words(noise)",
        "field.words(noise % 2**16)",
        f"{_PROVEN_CAMPAIGN}::test_a_batch_with_liars_lands_the_honest_sum_of_the_rest",
    ),
    _mutation(
        "client-without-its-proof",
        _CLIENT_FILE,
        "            if proof is None:\n                report = two_server.make_report(",
        "            if True:\n                report = two_server.make_report(",
        _PROVEN_CAMPAIGN,
    ),
    _mutation(
        "servers-of-no-proofs",
        _SERVER_FILE,
        "made = two_server.Leader(self.plan.report_proof or parameters,",
        "made = two_server.Leader(parameters,",
        _PROVEN_CAMPAIGN,
    ),
    _mutation(
        "plan-without-its-validity",
        "secagg/config.py",
        '{"validity": str(self.validity)} if self.has_proofs else {}',
        "{}",
        f"{_PROVEN_CAMPAIGN}"
        "::test_a_plan_without_the_proofs_is_another_plan_and_its_reports_are_refused",
    ),
    _mutation(
        "nobody-abstains",
        "plan.py",
        "abstain = self.privacy is not None",
        "abstain = False",
        f"{_PROVEN_CAMPAIGN}::test_a_client_without_an_item_abstains_unseen_under_privacy",
    ),
    _mutation(
        "everybody-abstains",
        "plan.py",
        "abstain = self.privacy is not None",
        "abstain = True",
        f"{_PROVEN_CAMPAIGN}::test_a_client_without_an_item_abstains_unseen_under_privacy",
    ),
    _mutation(
        "minus-1-in-a-proven-histogram",
        "plan.py",
        "        signed = self.encoding.is_signed\n        parameters",
        "        signed = True\n        parameters",
        f"{_PROVEN_CAMPAIGN}::test_a_client_that_takes_a_candidate_away_is_refused",
    ),
    _mutation(
        "sign-of-a-proof-not-checked",
        "flp/one_hot.py",
        "checks = np.concatenate([s - np.asarray(e)[..., None], checks], -1)",
        "checks = np.concatenate([0 * s, checks], -1)",
        "test_one_hot.py::test_only_honest_vectors_satisfy_the_circuit",
    ),
    _mutation(
        "circuit-without-its-sign",
        _PROOFS_FILE,
        "bytes([circuit.abstain, circuit.signed, circuit.checksum])",
        "bytes([circuit.abstain, circuit.checksum])",
        f"{_PROOFS}::test_every_term_of_the_circuit_is_in_the_context",
    ),
    # a client of two items could not report, and its error would show how many it holds
    _mutation(
        "histogram-of-several-items-proven",
        "planner/secure_sum.py",
        "why_no_proofs(items=items,",
        "why_no_proofs(items=agreed.largest_entry,",
        f"{_PROVEN_CAMPAIGN}::test_where_proofs_cannot_be_had_there_are_none_and_it_is_said",
    ),
    _mutation(
        "plan-of-several-items-proven",
        "secagg/config.py",
        "why_no_proofs(items=items,",
        "why_no_proofs(items=largest_entry,",
        f"{_PROVEN_CAMPAIGN}::test_a_plan_that_asks_for_proofs_that_it_cannot_have_is_refused",
    ),
    _mutation(
        "words-in-a-traceback",
        _PROOFS_FILE,
        "secrets.callback(words.fill, 0)",
        "pass",
        f"{_PROVEN_CAMPAIGN}::test_no_report_that_fails_leaves_the_items_behind",
    ),
    _mutation(
        "proof-in-a-traceback",
        _PROOFS_FILE,
        "secrets.callback(proof.fill, 0)",
        "pass",
        f"{_PROVEN_CAMPAIGN}::test_no_report_that_fails_leaves_the_items_behind",
    ),
    _mutation("two-reports", _PROOFS_FILE, "if agreed else", "if True else", _PROOFS),
    _mutation(
        "rows-of-one-weight",
        _ONE_HOT_FILE,
        "odd, even = powers[..., 1:-1:2, :], powers[..., 2::2, :]",
        "odd, even = 0 * powers[..., 1:-1:2, :] + powers[..., 1:2, :], powers[..., 2::2, :]",
        "test_one_hot.py::test_cheats_of_all_kinds_are_refused",
    ),
    _mutation(
        "e-of-any-value",
        _ONE_HOT_FILE,
        "pairs[..., end, 1, :] = field.constant(e - field.inverse(shares))",
        "pairs[..., end, 1, :] = 0",
        "test_one_hot.py::test_cheats_of_all_kinds_are_refused",
    ),
    _mutation(
        "checksum-of-any-value",
        _ONE_HOT_FILE,
        "return np.concatenate([rows, checks], -2)",
        "return np.concatenate([rows, 0 * checks], -2)",
        "test_one_hot.py::test_cheats_of_all_kinds_are_refused",
    ),
)


class Outcome(NamedTuple):
    """The outcome of a mutation: the test that failed, or what went wrong (`caught_by` is "")."""

    mutation: Mutation
    caught_by: str
    problem: str
    seconds: float


def applied(mutation: Mutation, text: str) -> str:
    """Return a file's text with the error in it.

    Raises:
        ValueError: the text is not there exactly once, or stays as it is, or what comes of it is no
            Python.
    """
    if mutation.new == mutation.old:
        raise ValueError(f"{mutation.name}: it changes nothing")
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(
            f"{mutation.name}: its text is {found} times in {mutation.file}, and must be there once"
        )
    changed = text.replace(mutation.old, mutation.new)
    try:
        compile(changed, mutation.file, "exec")
    except SyntaxError as error:
        raise ValueError(
            f"{mutation.name}: what it makes of {mutation.file} is no Python: {error}"
        ) from error
    return changed


class _Planted(InspectLoader):
    """Loads a module from a text."""

    def __init__(self, text: str, is_package: bool) -> None:
        self._text, self._is_package = text, is_package

    def get_source(self, fullname: str) -> str:
        return self._text

    def is_package(self, fullname: str) -> bool:
        return self._is_package


def check_import(mutation: Mutation, text: str) -> None:
    """Import a module with the error in it, beside the right one.

    Raises:
        ValueError: it cannot be imported, so that no test would run.
    """
    parts = ("fedtally", *Path(mutation.file).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    loader = _Planted(text, is_package)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    try:
        importlib.import_module(name)  # with what it needs, and what needs it
        loader.exec_module(module_from_spec(spec))
    except Exception as error:
        raise ValueError(
            f"{mutation.name}: {mutation.file} cannot be imported with it: {error!r}"
        ) from error


def problems(mutations: Sequence[Mutation]) -> list[str]:
    """Return the reasons why mutations cannot be applied, or their tests cannot be found."""
    found = []
    for mutation in mutations:
        try:
            text = (PACKAGE / mutation.file).read_text(encoding="utf-8")
            check_import(mutation, applied(mutation, text))
        except (OSError, ValueError) as error:
            found.append(str(error))
        for test in mutation.tests:
            path, name = located(test)
            if path is None or f"def {name}" not in path.read_text(encoding="utf-8"):
                found.append(f"{mutation.name}: there is no test {test}")
    return found


def located(test: str) -> tuple[Path | None, str]:
    """Return the file of a test, in whichever folder below tests/ it is, and its name in there."""
    file, _, name = test.partition("::")
    return next((ROOT / "tests").rglob(file), None), name


def copied(folder: Path) -> Path:
    """Copy the package into a folder, with the kernels that this Python runs; return the copy."""
    from fedtally import kernels

    copy = folder / "fedtally"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    native = getattr(kernels, "_native", None)
    if native is not None:
        shutil.copy(native.__file__, copy / "kernels")
    return copy


def tested(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of the package in a folder until one fails; return the exit code and that test."""
    options = [
        "-x",
        "-q",
        "--all",  # slow tests too: a planted error may be what one of them is there for
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    paths = [
        f"{path}::{name}" if name else str(path) for path, name in (located(test) for test in tests)
    ]
    command = [
        sys.executable,
        "-B",
        "-c",
        _RUNNER,
        str(folder),
        *options,
        *paths,
    ]
    # Options for a run around this one, such as to measure coverage, are not for the copy.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {TIMEOUT} s"
    failed = re.findall(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+::.*?)(?: - .*)?$", done.stdout, re.M)
    return done.returncode, failed[0] if failed else (done.stdout + done.stderr)[-2000:]


def tried(mutation: Mutation, folder: Path) -> Outcome:
    """Plant an error into a copy, run its tests, and take it out."""
    path, start = folder / "fedtally" / mutation.file, time.monotonic()
    text = path.read_text(encoding="utf-8")
    path.write_text(applied(mutation, text), encoding="utf-8")
    try:
        code, said = tested(folder, mutation.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.monotonic() - start
    if code == _FAILED:
        return Outcome(mutation, said, "", seconds)
    return Outcome(
        mutation,
        "",
        "no test fails" if code == 0 else f"tests did not run ({code}): {said}",
        seconds,
    )


@contextmanager
def copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Yield as many copies of the package as run at once."""
    with tempfile.TemporaryDirectory() as name:
        free: SimpleQueue[Path] = SimpleQueue()
        for i in range(number):
            folder = Path(name) / str(i)
            folder.mkdir()
            copied(folder)
            free.put(folder)
        yield free


def run(mutations: Sequence[Mutation], jobs: int) -> int:
    """Try mutations and print what came of them; return how many were not caught."""
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        folder = free.get()
        tests = sorted({test for mutation in mutations for test in mutation.tests})
        whole = {test for test in tests if "::" not in test}
        code, said = tested(
            folder,
            [test for test in tests if test in whole or test.partition("::")[0] not in whole],
        )
        free.put(folder)
        if code:
            print(f"the tests do not pass without any error planted ({code}): {said}")
            return len(mutations)

        def one(mutation: Mutation) -> Outcome:
            folder = free.get()
            try:
                return tried(mutation, folder)
            finally:
                free.put(folder)

        survived = 0
        width = max(len(mutation.name) for mutation in mutations)
        for outcome in pool.map(one, mutations):
            caught = outcome.caught_by or f"SURVIVES: {outcome.problem}"
            print(
                f"{outcome.mutation.name:<{width}}  {outcome.seconds:6.1f} s  {caught}", flush=True
            )
            survived += not outcome.caught_by
    print(f"{len(mutations)} mutations, {survived} survive")
    return survived


def main() -> int:
    """Return the exit code: 1 if an error is caught by no test, or cannot be planted."""
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help="try this one; may be repeated",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many run at once (1)")
    parser.add_argument("--check", action="store_true", help="do not run tests")
    options = parser.parse_args()
    chosen = [
        mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only
    ]
    if found := problems(chosen):
        print("\n".join(found))
        return 1
    return 0 if options.check else int(run(chosen, max(1, options.jobs)) > 0)


if __name__ == "__main__":
    sys.exit(main())
