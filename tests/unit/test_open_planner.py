"""Sizes for names that nobody lists: predicted, searched, run, compared with the truth."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedtally
from fedtally.answer import screen, sections
from fedtally.answer.evaluation import NameEvaluation
from fedtally.answer.result import Result
from fedtally.cli import plan_view
from fedtally.cli.app import run
from fedtally.domain import Names, OpenStrings, Unread
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, open_domain, readable_names
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.open_domain import best, predicted, smallest
from fedtally.plan.open_guesses import FINDER_SPARE, Guesses, Wanted
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.proposal import for_strings
from fedtally.plan.readable_names import Speller
from fedtally.plan.request import Request
from fedtally.plan.silos import Silos
from fedtally.simulation.round_tally import Members, RoundTally, split_clients, tally_members
from fedtally.sketch import Schedule
from fedtally.sources import from_items
from fedtally.studies import validation

pytestmark = pytest.mark.usefixtures("errors_once")
DOMAIN = OpenStrings(max_length=12, bits=12)
LAW = readable_names.assumed(DOMAIN)
SHARES = np.arange(1, 401) ** -1.3
COUNTS = np.random.default_rng(0).multinomial(20_000, SHARES / SHARES.sum())
WORDS = [f"word{place}" for place in range(400)]


def search(clients=20_000, *, rare=False, domain=DOMAIN, length=7, silos=None, **asked):
    """Return design, law and wanted names, of few bytes and hashes of few bits."""
    spec = Request(domain=domain, **asked).resolve(silos=silos)
    design = Design.for_fleet(spec, domain, clients, bytes(32))
    return design, readable_names.assumed(domain), Wanted(length, allow_rare=rare)


def spared(asked, spare):
    """Return the same with another spare width of the finder."""
    design, law, wanted = asked
    return design, law, replace(wanted, spare=spare)


def propose(asked, **options):
    return for_strings(*asked, **options)


def told(capsys):
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_sums_that_show_single_clients_are_not_planned():
    with pytest.raises(InvalidInputError, match="20 clients in [0-9]+ counters show what single"):
        propose(search(20, max_bytes=1000))
    assert propose(search(20, max_bytes=1000, rare=True)).rare.is_refused


# ---- predictions ----


@pytest.mark.parametrize("noise", [0.0, 400.0])
@pytest.mark.parametrize("length", [4, 16, 60])
def test_a_width_and_its_frequency_are_inverse(length, noise):
    speller = Speller(Frequencies.assumed(10**6), 4, 66, 5000, noise)
    for theta in (0.05, 0.2):
        width = speller.width(theta, length)
        assert speller.theta(width, length) <= theta * 1.001
        assert width == 1 or speller.theta(max(1, int(0.9 * width)), length) > theta


def test_what_no_width_reads_is_said():
    speller = Speller(Frequencies.assumed(10**6), 4, 66, 5000, 1e8)
    assert speller.width(0.01, 8) is None
    assert speller.theta(1000, 8) == np.inf
    # of so few clients a name has hardly a holder at each position, whatever the width
    assert Speller(Frequencies.assumed(10**6), 4, 66, 100, 0.0).width(0.001, 60) is None


def test_more_clients_rows_and_copies_read_more_and_noise_less():
    usual = Speller(Frequencies.assumed(10**6), 3, 66, 5000, 100.0)
    theta = usual.theta(50, 8)
    assert usual.theta(50, 16) > theta > usual.theta(100, 8)
    assert replace(usual, rows=5).theta(50, 8) < theta
    assert replace(usual, positions=132).theta(50, 8) < theta
    assert replace(usual, clients=20_000).theta(50, 8) < theta
    assert replace(usual, noise=900.0).theta(50, 8) > theta


def test_the_prediction_of_a_plan_says_who_is_named():
    found = propose(search(tau=0.01)).names
    assert found.length == 7 and [size for size, _ in found.by_length] == [8, 12]
    assert found.theta_name <= 0.02 and found.theta_find <= 0.02 and found.named == 1.0
    # hashes stand out from no fewer clients than six standard errors of the finder
    plan = propose(search(tau=0.01)).plan
    # each campaign that is tried would look at all hashes
    predictor = replace(Predictor.from_plan(plan, "joint"), schedule="shared")
    assert predictor.with_repeats(20).trials(LAW, 2, 9) is None
    half = replace(plan, spelling=replace(plan.spelling, width=plan.spelling.width // 2))
    less = readable_names.predict(half, LAW, 0.02, 7)
    assert less.theta_name > found.theta_name and 0 < less.named < 1
    assert readable_names.predict(half, LAW, 0.9, 7).named == 1.0  # no string is so frequent
    assert readable_names.predict(half, LAW, 0.9, 7).to_dict()["threshold"] == 0.9


# ---- sizes ----


def test_the_smallest_size_keeps_the_target_and_no_smaller_one_does():
    asked = search(tau=0.01)
    design = smallest(*asked)
    chosen, plan = design.chosen, design.plan()
    found = predicted(design, *asked[1:])
    assert found.least <= 0.02
    narrower = replace(chosen.spelling, width=int(0.9 * chosen.spelling.width))
    assert predicted(design.with_size(*chosen[:3], narrower), *asked[1:]).least > 0.02
    # the finder is 1.1 times 1.6 times as wide as it must be, and its counters are whole
    few = design.with_size(chosen.schedule, chosen.rows, chosen.width // 2, chosen.spelling).plan()
    assert fedtally_linf(few) > 0.01 >= fedtally_linf(plan)


def fedtally_linf(plan):
    return predict_linf(plan, LAW, "joint", 0.05)


def words(clients, **asked):
    """Return a search among usual hashes, and a law that is flatter than the assumed one.

    Below .001 it has 1.8 times the energy: words and names have 1.7 to 2.
    """
    domain = OpenStrings()
    flat = np.arange(1.0, 10_001) ** -0.9
    law = Frequencies.from_frequencies(flat / flat.sum(), domain.size)
    return search(clients, domain=domain, length=16, **asked), law


@pytest.mark.parametrize(
    "asked",
    [{"tau": 0.001}, {"tau": 0.001, "epsilon": 1.0}, {"max_bytes": 9000, "epsilon": 1.0}],
    ids=["without noise", "with noise", "for bytes"],
)
def test_tau_is_kept_on_tables_flatter_than_the_assumed_ones(asked):
    """By the error model, at the failure probability of the plan; campaigns agree:
    `python -m experiments open-tau`."""
    assumed, flat = words(200_000, **asked)

    def error(spare):
        plan = propose(spared(assumed, spare)).plan
        return predict_linf(plan, flat, "joint", 0.1) / plan.target.linf

    assert error(FINDER_SPARE) <= 1.0 < error(1.0)


def test_a_finder_of_a_known_law_has_no_spare_width(tmp_path):
    """--like says the law: the one that is assumed then needs fewer bytes than if it is assumed."""
    asked = ["plan", "--clients", "200000", "--domain", "open", "--tau", "0.001", "--epsilon", "1"]
    sizes = []
    for number, more in enumerate([[], ["--like", "zipf:a=1.1,d=1000000"]]):
        path = str(tmp_path / f"{number}.toml")
        assert run([*asked, *more, "--quiet", "-o", path]) == 0
        sizes.append(Plan.load(path).bytes_per_client)
    known = propose(spared(words(200_000, tau=0.001, epsilon=1.0)[0], 1.0)).plan
    assert sizes[1] == known.bytes_per_client < 0.95 * sizes[0]


def test_a_size_that_shows_less_is_looked_for_beyond_the_first_ones():
    """Guesses are of few clients a counter too few: the widths that are computed cross a bound."""
    found = propose(words(100_000, tau=0.001)[0])
    assert not found.rare.is_warned


def test_rounds_save_bytes_and_never_show_single_clients():
    chosen = propose(search(tau=0.01))
    assert chosen.plan.num_rounds > 1 and str(chosen.plan.schedule) == "hybrid"
    one = propose(search(tau=0.01, num_rounds=1))
    assert chosen.plan.bytes_per_client < one.plan.bytes_per_client / 3
    assert chosen.rare.counters <= chosen.rare.clients
    assert not chosen.rare.is_warned  # such a size exists, and is preferred


def test_rounds_too_small_for_a_secure_sum_are_left_out():
    """One round of 100 clients can be summed; of 13 rounds one may have a single client."""
    asked = {"secure_sum": "secagg", "epsilon": 20.0, "max_bytes": 2000}
    with pytest.raises(InvalidInputError, match="a secure sum needs at least 3"):
        propose(search(100, num_rounds=13, **asked))
    free, alone = propose(search(100, **asked)), propose(search(100, num_rounds=1, **asked))
    assert free.target.linf <= alone.target.linf
    assert max(design.num_rounds for design in Guesses(*search(100, **asked)).designs) < 13


def test_a_sum_of_too_few_clients_is_planned_only_where_that_is_allowed():
    with pytest.raises(InvalidInputError, match="any of these would do: tau 0.0[0-9]+; [0-9,]+ cl"):
        smallest(*search(3000, tau=0.01, num_rounds=8))
    found = propose(search(3000, tau=0.01, num_rounds=8, rare=True))
    assert found.rare.is_refused and found.rare.counters == found.plan.spec.vector_length


@pytest.mark.parametrize("asked", [{"epsilon": 1.0}, {}])
def test_what_would_do_does(asked):
    tight = search(1500, tau=0.004, length=5, **asked)
    with pytest.raises(InvalidInputError, match="any of these would do") as error:
        smallest(*tight)
    message = str(error.value)
    assert "names of strings that more than 0.008 of the clients hold" in message
    ways = dict(re.findall(r"(tau|epsilon|max_length) ([0-9.]+)", message.partition("do: ")[2]))
    clients = int(re.search(r"([0-9,]+) clients$", message)[1].replace(",", ""))
    assert clients > 1500 and float(ways["tau"]) > 0.004
    assert ("epsilon" in ways) == bool(asked)
    changes = {
        "tau": Design.with_tau,
        "epsilon": Design.with_epsilon,
        "max_length": Design.with_length,
    }
    changed = [tight[0].with_clients(clients)]
    changed += [
        changes[name](tight[0], float(value) if "." in value else int(value))
        for name, value in ways.items()
    ]
    assert all(smallest(design, *tight[1:]) for design in changed)


@pytest.mark.parametrize(("needed", "longest"), [(1, 192), (16, 192), (60, 192), (7, 64)])
def test_the_longest_names_that_fit_are_found(monkeypatch, needed, longest):
    """Whatever fits, from the names that must be read to one byte less than what was asked."""

    def with_length(bound):
        return OpenStrings(max_length=bound).max_length  # it refuses more than 192

    guesses = SimpleNamespace(
        domain=SimpleNamespace(max_length=longest),
        length=needed,
        design=SimpleNamespace(with_length=with_length),
        of=lambda bound: bound,
    )
    for fits in range(needed - 1, longest + 1):
        monkeypatch.setattr(
            open_domain, "_smallest", lambda bound, most=fits: bound if bound <= most else None
        )
        found = open_domain._longest(guesses)
        assert found == (min(fits, longest - 1) if fits >= needed else None)


def test_bytes_that_would_do_are_named():
    asked = {"tau": 0.01, "num_rounds": 6}
    enough = propose(search(**asked)).plan.bytes_per_client
    with pytest.raises(InvalidInputError, match=f"within {enough - 9:,} bytes.* {enough:,} bytes"):
        smallest(*search(max_bytes=enough - 9, **asked))
    assert smallest(*search(max_bytes=enough, **asked))


def test_the_least_epsilon_for_tau_and_bytes():
    spec = {"tau": 0.03, "max_bytes": 300, "epsilon": 1.0, "num_rounds": 4}
    found = propose(search(**spec), find_epsilon=True)
    epsilon = found.plan.privacy.epsilon
    assert found.found == "epsilon" and found.plan.bytes_per_client <= 300
    assert found.names.least <= 0.06
    assert open_domain._smallest(Guesses(*search(**spec | {"epsilon": 0.6 * epsilon}))) is None
    with pytest.raises(InvalidInputError, match="cannot be had within 9 bytes at any epsilon"):
        propose(search(**spec | {"max_bytes": 9}), find_epsilon=True)


def test_several_releases_are_compared_with_one():
    found = propose(search(max_bytes=900, epsilon=0.5, num_rounds=4, schedule="hybrid"))
    size, one = found.one_release
    assert len(found.plan.releases) == 4 and size > found.plan.bytes_per_client
    assert one.theta_name < found.names.theta_name and one.theta_find < found.names.theta_find
    assert propose(search(tau=0.03, epsilon=2.0, num_rounds=1)).one_release is None


def test_schedules_under_noise_are_those_of_the_rounds():
    found = propose(search(tau=0.05, epsilon=1.0, num_rounds=4)).plan
    assert str(found.schedule) in ("shared", "batched:2", "batched:3", "hybrid")
    named = propose(search(tau=0.05, epsilon=1.0, schedule="batched:2", num_rounds=4)).plan
    assert str(named.schedule) == "batched:2"


@pytest.mark.parametrize("method", ["secagg", "two-server"])
def test_secure_sums_are_sized(method):
    found = propose(search(40_000, tau=0.05, epsilon=4.0, secure_sum=method))
    assert found.plan.secure_sum.method == method and found.names.least <= 0.1


@pytest.mark.parametrize("validity", ["proofs", "none"])
def test_a_guess_has_the_bytes_of_its_plan(validity):
    """A proof grows with all rows, those that spell names too."""
    asked = search(200_000, tau=0.02, secure_sum="two-server", validity=validity)
    for guess in Guesses(*asked).ranked:
        assert guess.size == guess.design.bytes_per_client


def test_more_clients_than_a_cohort_has_are_offered_larger_cohorts():
    tight = {"tau": 0.03, "epsilon": 0.5, "secure_sum": "secagg", "num_rounds": 1}
    with pytest.raises(InvalidInputError, match=r"cohorts of up to [0-9,]+ \(max_cohort=\)"):
        smallest(*search(20_000, max_cohort=200, **tight))


def test_cohorts_that_are_asked_for_fit_the_rounds():
    """2,000 clients fill at most 12 cohorts of 160; the fewest bytes alone would take 17 rounds."""
    asked = {"tau": 0.05, "epsilon": 4.0, "secure_sum": "secagg", "adversary": "active"}
    sized = {**asked, "cohort": 200, "cohort_min": 160, "domain": OpenStrings()}
    plan = propose(search(2000, length=16, **sized)).plan
    assert plan.num_rounds <= 2000 // plan.secure_sum.parameters.n_min == 12
    with pytest.raises(InvalidInputError, match=r"cohort must be at most 118, the clients of a"):
        propose(search(2000, length=16, num_rounds=17, **sized))


def test_silos_are_sized_by_their_people():
    found = propose(search(10, tau=0.02, epsilon=4.0, silos=Silos(5000)))
    assert found.plan.is_of_silos and found.expected == 50_000


# ---- what bytes buy ----


@pytest.mark.parametrize(
    "asked",
    [{"tau": 0.01}, {"tau": 0.03, "epsilon": 1.0}, {"tau": 0.02, "num_rounds": 3}],
    ids=["without noise", "with noise", "of given rounds"],
)
def test_bytes_buy_the_tau_that_needs_them(asked):
    """The two searches are each other's inverse, up to the counters that cannot be halved."""
    needed = propose(spared(search(**asked), 1.0)).plan
    for_bytes = search(max_bytes=needed.bytes_per_client, **asked | {"tau": None})
    bought = propose(spared(for_bytes, 1.0))
    assert 0.85 * needed.bytes_per_client < bought.plan.bytes_per_client
    assert bought.plan.bytes_per_client <= needed.bytes_per_client
    assert bought.linf <= bought.target.linf <= 1.25 * asked["tau"] and bought.found == "error"
    assert bought.names.least <= bought.names.threshold == 2 * bought.target.linf
    if "num_rounds" in asked:
        assert bought.plan.num_rounds == 3


@pytest.mark.parametrize("asked", [{}, {"epsilon": 1.0}], ids=["without noise", "with noise"])
def test_bytes_buy_the_tau_that_needs_them_with_spare_width_too(asked):
    needed = propose(words(200_000, tau=0.001, **asked)[0]).plan
    bought = propose(words(200_000, max_bytes=needed.bytes_per_client, **asked)[0])
    assert bought.plan.bytes_per_client <= needed.bytes_per_client
    assert bought.plan.target.linf <= 1.15 * 0.001
    # the finder would keep that tau without its spare width
    narrow = replace(bought.plan, width=int(bought.plan.width / FINDER_SPARE))
    law = readable_names.assumed(OpenStrings())
    assert predict_linf(narrow, law, "joint", 0.05) <= bought.plan.target.linf


def test_more_bytes_read_rarer_names():
    small, large = (propose(search(max_bytes=size, epsilon=1.0)) for size in (600, 2400))
    assert large.names.least < 0.8 * small.names.least and large.linf < 0.8 * small.linf


def test_bytes_are_kept_where_counters_need_twice_the_estimated_bits():
    """A secure sum rounds the bits of a counter up to 8 or 16: the guess takes 8, the plan 16."""
    for max_bytes in (2000, 20_000):
        found = propose(search(100, secure_sum="secagg", epsilon=20.0, max_bytes=max_bytes))
        assert found.plan.modulus_bits == {2000: 8, 20_000: 16}[max_bytes]
        assert 0.9 * max_bytes < found.plan.bytes_per_client <= max_bytes


def test_bytes_are_left_where_they_would_show_single_clients():
    """Of 2,000 clients in one sum at most 2,000 counters are taken, whatever the bytes."""
    asked = {"max_bytes": 32_000, "num_rounds": 1}
    found = propose(search(2000, **asked))
    assert found.rare.counters <= 2000 and not found.rare.is_refused
    assert "of 32,000 bytes are used" in found.size.message
    free = propose(search(2000, rare=True, **asked))
    assert free.rare.is_refused and free.size.message == ""
    assert free.names.least < found.names.least and free.plan.bytes_per_client > 25_000
    # sums that show less are preferred, where names are hardly rarer in others
    many = propose(search(200_000, max_bytes=3000))
    assert not many.rare.is_warned and many.size.message == ""


def test_bytes_that_buy_nothing_are_refused_with_what_would_do():
    with pytest.raises(InvalidInputError, match="with 20 bytes no name of up to 7 bytes") as error:
        best(*search(max_bytes=20, num_rounds=1))
    enough = int(re.search(r"at least ([0-9,]+) bytes$", str(error.value))[1].replace(",", ""))
    assert best(*search(max_bytes=enough, num_rounds=1))
    with pytest.raises(InvalidInputError, match="no name .* whatever the bytes.* a larger epsilon"):
        best(*search(100, max_bytes=3000, epsilon=0.01))
    with pytest.raises(InvalidInputError, match="10 clients in [0-9,]+ counters"):
        best(*search(10, num_rounds=1))
    with pytest.raises(InvalidInputError, match="cohorts of 3 clients"):
        best(*search(3, max_bytes=3000, secure_sum="secagg", rare=True))


# ---- the command ----


def test_the_command_says_what_will_be_read(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    asked = ["plan", "--clients", "100000", "--domain", "open", "--quiet"]
    assert run([*asked, "--tau", "0.002", "--details", "-o", str(plan)]) == 0
    shown = told(capsys)
    assert "names of strings that more than 0.4 % hold are read" in shown
    assert "clients or more can be read, and by the server, too, if they have" in shown
    assert "expected: 100% of the strings above 0.4 % are named" in shown
    assert Plan.load(plan).target.linf == 0.002 and Plan.load(plan).num_rounds > 1
    more = ["--max-bytes", "20kB", "--epsilon", "1", "--rounds", "8", "--schedule", "hybrid"]
    assert run([*asked, *more, "--details"]) == 0
    shown = told(capsys)
    assert "so with 8 releases; one release would name" in shown
    assert "names held by about" in shown and "decodes hashes and names in about" in shown
    assert run([*asked, "--tau", "0.002", "--json", "--name-length", "30"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["names"]
    assert found["name_length"] == 30 and found["theta_name"] <= found["threshold"] == 0.004
    assert found["one_release"] is None and document["rare_names"]["confirmed"] > 1
    assert run([*asked, "--tau", "0.0001", "--epsilon", "1"]) == 2
    assert "any of these would do: tau" in told(capsys)
    assert run([*asked, "--max-bytes", "9", "--epsilon", "1"]) == 2
    assert "with 9 bytes no name of up to 16 bytes can be read" in told(capsys)
    assert run(["plan", "--clients", "9", "--domain-size", "9", "--name-length", "3"]) == 2
    assert "--name-length goes with --domain open" in told(capsys)


def test_what_frequencies_are_like_is_said_and_kept():
    found = propose(search(tau=0.01), like="like zipf:a=1.5,d=1000")
    assert found.plan.target.frequencies == "like zipf:a=1.5,d=1000"
    shown = plain(plan_view.view(found, None))
    assert "like zipf:a=1.5,d=1000" in shown and "assumed to fall" not in shown


def test_names_that_nobody_can_read_are_said():
    found = propose(search(tau=0.01))
    nobody = found.names._replace(theta_name=np.inf, by_length=((7, np.inf), (12, 0.5)))
    shown = plain(plan_view.view(replace(found, names=nobody), None))
    assert "names of 7 bytes cannot be read, whoever holds them" in shown
    assert "of other lengths, in bytes: 12 from about 10,000" in shown
    shown = plain(plan_view.view(replace(found, names=nobody._replace(by_length=())), None))
    assert "of other lengths" not in shown
    assert nobody.to_dict()["theta_name"] is None


def test_a_name_needs_as_many_holders_as_its_hash():
    # short names of a small table are spelled before their hash stands out
    found = propose(search(tau=0.01))
    names = found.names._replace(
        theta_name=0.003, theta_find=0.004, by_length=((8, 0.003), (16, 0.0041), (64, np.inf))
    )
    shown = plain(plan_view.view(replace(found, names=names), None))
    assert "names held by about 80 clients or more can be read" in shown
    assert "of other lengths, in bytes: 8 from about 80, 16 from about 82 strings" in shown
    assert "strings held by about 80 clients or more stand out" in shown
    shown = plain(plan_view.view(replace(found, names=names._replace(theta_find=0.002)), None))
    assert "names held by about 60 clients or more can be read" in shown


def test_a_plan_of_a_small_table_names_no_string_that_does_not_stand_out(capsys):
    asked = ["plan", "--domain", "open", "--clients", "20000", "--max-bytes", "512kB"]
    assert run([*asked, "--epsilon", "1", "--name-length", "8", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert names["theta_name"] < names["theta_find"]
    assert run([*asked, "--epsilon", "1", "--name-length", "8"]) == 0
    shown = re.search(r"names held by about (\d+) clients or more can be read", told(capsys))
    assert int(shown[1]) == np.ceil(names["theta_find"] * 20_000)


def plain(view):
    return " ".join(screen.plain(view, 200).split())


# ---- estimates ----


@pytest.fixture(scope="module")
def result():
    # of 12 bits strings would share hashes, and a name of the rarer one is wrong
    options = {"tau": 0.01, "evaluate": True, "seed": 1, "name_length": 7}
    domain = OpenStrings(max_length=12, bits=16)
    return fedtally.estimate(WORDS, counts=COUNTS.tolist(), domain=domain, **options)


def test_an_estimate_for_a_target_chooses_its_rounds(result):
    assert result.plan.num_rounds > 1 and len(result.sketches) == result.plan.num_rounds
    assert result.num_clients == 20_000 and result.plan.target.linf == 0.01
    assert result.sizing["pilot"] is None and result.sizing["names"]["named"] == 1.0
    given = fedtally.estimate(
        WORDS, counts=COUNTS.tolist(), domain=DOMAIN, tau=0.02, num_rounds=3, seed=1
    )
    assert given.plan.num_rounds == 3


def test_natural_rounds_stay(result):
    rounds = np.arange(20_000) % 5
    items = np.repeat(WORDS, COUNTS).tolist()
    found = fedtally.estimate(items, rounds=rounds, domain=DOMAIN, tau=0.02, seed=1)
    assert found.plan.num_rounds == 5


def test_the_evaluation_is_that_of_the_true_strings(result):
    found, true = result.evaluation, COUNTS / 20_000
    assert isinstance(found, NameEvaluation) and found.threshold == 0.02
    frequent = {word for word, share in zip(WORDS, true, strict=True) if share > 0.02}
    given = result.names
    assert found.strings == len(frequent) and found.named == len(given)
    assert found.recall == len(frequent & set(given.values())) / len(frequent) == 1.0
    of_hash = {}
    for word, share in zip(WORDS, true, strict=True):
        h = int(result.domain.encode([word])[0])
        if share:
            of_hash[h] = of_hash.get(h, 0.0) + share
    hashes = sorted({*of_hash, *result.found.tolist()})
    estimates = result.decoder.at(np.array(hashes, np.uint64)) / 20_000
    errors = estimates - np.array([of_hash.get(h, 0.0) for h in hashes])
    assert found.linf == pytest.approx(np.abs(errors).max())
    assert found.l2 == pytest.approx(np.linalg.norm(errors))
    assert found.coverage > 0.8 and found.wrong == 0 and found.precision == 1.0


def test_wrong_names_are_counted(result):
    first = int(result.found[np.argmax(result.decoder.at(result.found.view(np.uint64)))])
    wrong = Result(result.plan, result.domain, result.sketches, truth=result.truth)
    wrong.names = {**result.names, first: "nobody"}
    found = wrong.evaluate()
    assert found.wrong == result.evaluation.wrong + 1 and found.recall < result.evaluation.recall
    assert found.precision < 1.0
    rare = min(result.names, key=lambda h: result.decoder.at(np.array([h], np.uint64))[0])
    wrong.names = {**result.names, rare: "nobody"}
    assert wrong.evaluate().wrong == result.evaluation.wrong + 1
    wrong.names = {}
    found = wrong.evaluate()
    assert (found.recall, found.precision, found.coverage) == (0.0, None, None)


def test_a_name_is_right_if_half_of_the_clients_of_its_hash_hold_it(result):
    """Others may hold another string of that hash: at most as many."""
    rare = min(result.names, key=lambda h: result.decoder.at(np.array([h], np.uint64))[0])
    [name] = result.domain.fingerprints([result.names[rare]])
    held = result.truth.of_strings(np.array([name]))[0]
    for others, wrong in ((0, 0), (held, 0), (held + 1, 1)):
        with_hash = result.truth.counts.copy()
        with_hash[np.searchsorted(result.truth.positions, rare)] = held + others
        truth = result.truth._replace(counts=with_hash)
        shared = Result(result.plan, result.domain, result.sketches, truth=truth)
        shared.names = result.names
        assert shared.evaluate().wrong == result.evaluation.wrong + wrong


def test_errors_above_the_target_are_said(result):
    """There is no pilot, so that frequencies may differ from what the plan assumes."""
    said = "points, where the plan was made for"
    assert result.intervals.predicted_linf < result.plan.target.linf
    assert said not in " ".join(result.warnings)
    target = replace(result.plan.target, linf=result.intervals.predicted_linf / 2)
    missed = Result(replace(result.plan, target=target), result.domain, result.sketches)
    assert said not in " ".join(missed.warnings)  # nothing is decoded for a note
    _ = missed.intervals
    assert f"{said} {100 * target.linf:.3g}," in " ".join(missed.warnings)


def test_one_string_is_not_called_all_one():
    for recall, said in ((1.0, "is named"), (0.0, "is not named")):
        found = NameEvaluation(0.02, 1, recall, None, 1, 1, 0.001, 0.002, None)
        shown = sections.error.evaluated_names(found)
        assert shown[1:3] == [f"the only string above 2 % {said}", "1 name, 1 wrong"]


def test_without_a_target_the_list_says_what_is_frequent(result):
    plan = replace(result.plan, target=None)
    found = Result(plan, result.domain, result.sketches, truth=result.truth)
    top = found.top(5)
    assert found.evaluate(5).threshold == top[-1].frequency
    assert found.evaluate(0).threshold == 0.0
    coarse = replace(result.plan, target=replace(result.plan.target, linf=0.4))
    found = Result(coarse, result.domain, result.sketches, truth=result.truth)
    assert found.evaluate().recall is None


def test_a_saved_evaluation_is_read_again(result, tmp_path):
    path = tmp_path / "words.fedtally"
    result.save(path)
    assert Result.load(path).evaluation == result.evaluation


def test_the_table_has_what_stands_out(result, tmp_path):
    table = result.to_arrow()
    assert table.num_rows == result.num_found and table.column_names[-1] == "hash"
    rows = table.to_pylist()
    assert [row["frequency"] for row in rows] == sorted(
        (row["frequency"] for row in rows), reverse=True
    )
    assert rows[0]["item"] == "word0" and rows[0]["low"] <= rows[0]["frequency"] <= rows[0]["high"]
    unread = Result(result.plan, result.domain, result.sketches, decoding=result.decoding)
    unread.names = {}
    row = unread.to_arrow().to_pylist()[0]
    assert row["item"] is None and Unread.of(int(row["hash"], 16)) in [
        each.item for each in unread.top(3)
    ]
    bare = result.decoded(confidence=0.0).to_arrow().to_pylist()[0]
    assert bare["low"] is None and bare["hash"] == rows[0]["hash"]


def test_the_command_evaluates_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedtally.domain.open_strings.BITS", 16)
    monkeypatch.setattr(OpenStrings.__init__, "__defaults__", (64, 16, None, None))
    path, output = tmp_path / "words.txt", tmp_path / "found.csv"
    path.write_text("\n".join(np.repeat(WORDS, COUNTS).tolist()) + "\n")
    asked = ["estimate", str(path), "--domain", "open", "--max-length", "12", "--seed", "1"]
    more = ["--tau", "1%", "--name-length", "7", "--evaluate", "--output", str(output)]
    assert run([*asked, *more]) == 0
    shown = told(capsys)
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["item"] == "word0" and len(rows[0]["hash"]) == 7
    assert run([*asked, *more[:5], "--details"]) == 0
    shown = told(capsys)
    assert "strings above 2 % are named" in shown
    assert "names, none of them wrong; precision" in shown
    assert "if names have at most 7 bytes" in shown
    assert run([*asked, *more[:5], "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluation"]["recall"] == 1.0
    assert run(["estimate", str(path), "--name-length", "7", "--tau", "1%"]) == 2
    assert "--name-length goes with an open domain that no plan has sized yet" in told(capsys)


def test_a_simulation_without_a_plan_makes_the_one_of_the_planner(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedtally.domain.open_strings.BITS", 12)
    monkeypatch.setattr(OpenStrings.__init__, "__defaults__", (64, 12, None, None))
    path = tmp_path / "words.txt"
    path.write_text("\n".join(np.repeat(WORDS, COUNTS).tolist()) + "\n")
    asked = ["--domain", "open", "--max-length", "12", "--tau", "1%", "--name-length", "7"]
    more = ["--repeats", "2", "--seed", "1", "--json", "--quiet"]
    assert run(["simulate", str(path), *asked, *more]) == 0
    tried = json.loads(capsys.readouterr().out)
    assert tried["names"]["recall"]["least"] > 0.8 and tried["repeats"] == 2
    number = str(sum(COUNTS))
    assert run(["plan", "--clients", number, *asked, "--json", "--quiet"]) == 0
    planned = json.loads(capsys.readouterr().out)["plan"]
    for field in ("rows", "width", "num_rounds", "num_clients", "spelling"):
        assert tried["plan"][field] == planned[field], field
    fixed = ["--rounds", "3", "--epsilon", "8"]
    assert run(["simulate", str(path), *asked, *more, *fixed]) == 0
    private = json.loads(capsys.readouterr().out)
    assert private["plan"]["num_rounds"] == 3 and private["privacy"]["not_private"]
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    assert run(["simulate", str(empty), "--domain", "open", *more]) == 2


def test_clients_keep_their_items_when_they_are_split():
    rng = np.random.default_rng(0)
    members = Members(np.arange(30, dtype=np.uint64), np.arange(0, 31, 3))
    parts = split_clients(tally_members(members), 4, rng)
    triples = [part.members.of(i).tolist() for part in parts for i in range(part.num_clients)]
    assert sorted(triples) == [list(range(i, i + 3)) for i in range(0, 30, 3)]
    alone = RoundTally(9, np.array([3, 5], np.uint64), np.array([4, 4]))
    parts = split_clients(alone, 3, rng)
    assert sum(part.num_clients for part in parts) == 9


def test_several_items_of_a_client_are_split_with_it():
    clients = np.arange(40_000) // 2
    items = [word for count, word in zip(COUNTS, WORDS, strict=True) for word in [word] * count]
    pairs = [item for pair in zip(items, reversed(items), strict=True) for item in pair]
    found = fedtally.estimate(
        pairs, clients=clients, max_items=2, domain=DOMAIN, tau=0.02, seed=1, evaluate=True
    )
    assert found.num_clients == 20_000 and found.plan.num_rounds > 1
    assert found.evaluation.recall == 1.0


# ---- does a plan keep its promise ----


@pytest.fixture(scope="module")
def plan():
    return propose(search(tau=0.01)).plan


def tried(plan, repeats=3, **options):
    source = from_items(WORDS, counts=COUNTS.tolist())
    return validation.run(source, validation.Trial(plan, repeats=repeats, seed=1), **options)


def test_a_plan_keeps_its_promise_of_names(plan, tmp_path):
    found = tried(plan)
    assert found.recall.met and found.recall.promised == 0.95 and found.verdict.met
    assert found.names.length == 5 and found.names.theta_name < 0.02
    assert found.predicted(0.1) > 0 and found.predicted_failure < 0.1
    table = found.to_arrow()
    assert table.column("recall").to_pylist() == [m.recall for m in found.measurements]
    assert tried(plan, domain="open").recall == found.recall


def test_a_plan_that_is_too_small_is_found_out(plan):
    """A tenth of the counters of each position: the promise is for the plan as it was made."""
    small = replace(plan, spelling=replace(plan.spelling, width=plan.spelling.width // 10))
    found = tried(small, repeats=8)
    assert found.recall.mean < 0.9
    # judged by what the whole plan promises
    judged = validation.Recall.of(found.measurements, tried(plan, repeats=1).names.named)
    assert judged.met is False


@pytest.mark.extras  # a plot is asked for
def test_the_command_judges_a_plan(plan, capsys, tmp_path):
    path, words = tmp_path / "plan.toml", tmp_path / "words.csv"
    plan.save(path)
    words.write_text(
        "word,n\n" + "".join(f"{w},{n}\n" for w, n in zip(WORDS, COUNTS, strict=True) if n)
    )
    asked = ["simulate", "--plan", str(path), str(words), "--item", "word", "--count", "n"]
    assert run([*asked, "--repeats", "2", "--seed", "1"]) == 0
    shown = told(capsys)
    assert re.search(r"Names met.*: [0-9.]+% of the strings above 2 % are named on average", shown)
    assert "at least 95.0% are promised for these clients" in shown
    assert run([*asked, "--repeats", "2", "--seed", "1", "--json", "--domain", "open"]) == 0
    found = json.loads(capsys.readouterr().out)["names"]
    assert found["met"] and found["recall"]["mean"] >= 0.9 and found["predicted"]["named"] == 1.0
    assert run([*asked, "--plot", str(tmp_path / "x.png")]) == 2
    assert "--plot is not for an open domain" in told(capsys)


def test_noise_meets_the_spelling_too():
    for trust in ("central", "distributed"):
        asked = {"tau": 0.05, "epsilon": 4.0, "trust": trust, "num_rounds": 2}
        asked |= {} if trust == "central" else {"secure_sum": "two-server"}
        plan = propose(search(**asked)).plan
        found = tried(plan, repeats=2)
        assert found.recall.mean >= 0.95
        # with the noise of a smaller epsilon names are lost: it is in all counters
        assert found.trial.study_plan.privacy.not_private


def test_a_promise_is_judged_by_its_standard_error():
    one = validation.Measurement("shared", 9, 0, 100, 0.1, 0.1, 5, 0.9, 5, 1)
    judged = validation.Recall.of
    assert judged([one] * 5, 1.0).met is False and judged([one], 1.0).met is None
    assert judged([one, one._replace(recall=0.94)], 1.0).met  # by chance, perhaps
    assert judged([one] * 2, None).promised is None
    none = one._replace(recall=None)
    assert judged([none], 1.0) == (None, None, 1, 0.95, None)


def test_names_are_the_same_under_another_seed():
    first = Names(OpenStrings(seed=bytes(32)), WORDS)
    domain = OpenStrings(seed=bytes([9] * 32))
    second, ids = first.rekeyed(domain)
    assert second.ids.tolist() == sorted(ids.tolist())
    assert dict(zip(first.ids.tolist(), ids.tolist(), strict=True)) == {
        int(first._domain.fingerprints([word])[0]): int(domain.fingerprints([word])[0])
        for word in WORDS
    }


def test_schedules_of_a_search_without_rounds():
    asked = search(tau=0.05, schedule=Schedule.parse("shared"))
    assert smallest(*asked).num_rounds == 1
