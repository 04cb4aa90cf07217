"""The noise of released sums, by enumeration and from published multipliers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments.curves import Release

from fedtally.errors import InvalidInputError
from fedtally.plan.choice import numbers_of_batches
from fedtally.privacy.events import Collisions, Event
from fedtally.sketch import Schedule

Z = 4.224679  # at epsilon 1, delta 1e-6 (Balle and Wang 2018): the design study's table, and autodp


EVENT = Event("rounded-gaussian", 16, "zero-out")


SKELLAM = Event("skellam", 16, "zero-out", honest_survivors=1000)


RELEASE = Release(EVENT, 1.0, 1e-6, 1_000_000, 64)


# ---- the noise of a release ----


@pytest.mark.parametrize(
    ("change", "square"),
    [
        ({}, 16),
        ({"relation": "replace-one"}, 64),
        ({"relation": "add-remove"}, 17),
        ({"max_items": 3}, 144),
        ({"max_items": 3, "clip_norm": 7.0}, 49),
        ({"relation": "replace-one", "collisions": Collisions(3, 3)}, 38),
        ({"trust": "distributed"}, 32),  # two servers add it both
    ],
)
def test_noise_has_the_multiplier_times_the_sensitivity(change, square):
    release = replace(RELEASE, event=replace(EVENT, **change))
    for num_batches in (1, 7, 64):
        assert release.noise(num_batches) == pytest.approx(Z * math.sqrt(square), rel=1e-6)
        assert release.num_releases(num_batches) == num_batches


def test_one_server_opens_every_round():
    release = replace(RELEASE, event=replace(SKELLAM, participations=3), provision=1.2)
    for num_batches in (1, 7, 64):
        assert release.num_releases(num_batches) == 64
        assert release.noise(num_batches) == pytest.approx(Z * math.sqrt(3 * 16 * 1.2), rel=1e-6)


def test_what_is_not_looked_at_does_not_matter():
    event = replace(EVENT, participations=4, variance=7.0, per_release=3)
    assert replace(RELEASE, event=event).noise(8) == replace(
        RELEASE, event=replace(EVENT, participations=4)
    ).noise(8)
    certified = Event(
        "rounded-gaussian", 16, "replace-one", participations=4, collisions=Collisions(3, 3)
    )
    release = replace(RELEASE, event=certified)
    assert release.noise(64) == pytest.approx(Z * math.sqrt(4 * 38), rel=1e-6)
    # not certified for sums of rounds
    assert release.noise(1) == pytest.approx(Z * 4 * 2 * math.sqrt(16), rel=1e-6)


@pytest.mark.parametrize("num_rounds", [4, 5, 6])
@pytest.mark.parametrize("participations", [1, 2, 3, 4])
def test_several_participations_are_charged_for_the_worst_rounds(num_rounds, participations):
    """By enumeration of the rounds that a client may take part in; exact for batches of equal
    size."""
    event = replace(EVENT, participations=participations)
    release = Release(event, 1.0, 1e-6, 10_000, num_rounds)
    for num_batches in range(1, num_rounds + 1):
        batch = [
            Schedule.parse(f"batched:{num_batches}").batch_of(m, num_rounds)
            for m in range(num_rounds)
        ]
        worst = max(
            sum(np.bincount([batch[m] for m in chosen]) ** 2)
            for chosen in itertools.combinations(range(num_rounds), participations)
        )
        charged = (release.noise(num_batches) / Z) ** 2 / 16
        assert charged >= worst - 1e-4
        if num_rounds % num_batches == 0:
            assert charged == pytest.approx(worst, rel=1e-5)


# ---- the best number of batches ----


def variance(release, num_batches, norm):
    """Return what one row of 500 columns errs by, squared: the tail's part and that of noise."""
    batches = Schedule.parse(f"batched:{num_batches}").batches_of(release.num_rounds)
    shares = sum((len(rounds) / release.num_rounds) ** 2 for rounds in batches)
    return norm**2 * shares / 500 + release.noise_variance(num_batches)


def test_choices_are_nearly_as_good_as_all():
    for num_rounds, participations in itertools.product((5, 10, 13, 20, 37, 64, 100), (1, 3)):
        release = Release(
            replace(EVENT, participations=participations), 1.0, 1e-6, 1_000_000, num_rounds
        )
        choices = numbers_of_batches(num_rounds)
        assert {1, num_rounds} <= choices <= set(range(1, num_rounds + 1))
        for norm in np.geomspace(1e-4, 0.1, 20):
            curve = {m: variance(release, m, norm) for m in range(1, num_rounds + 1)}
            assert min(curve[m] for m in choices) <= 1.01**2 * min(curve.values())


# ---- bad input ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be at least"),
        ({"delta": 1.0}, "delta must be above 0"),
        ({"num_clients": 0}, "num_clients must be at least 1"),
        ({"num_rounds": 0}, "num_rounds must be at least 1"),
        (
            {"num_rounds": 2, "event": replace(EVENT, participations=3)},
            "num_rounds must be at least 3, got 2",
        ),
        ({"event": SKELLAM, "provision": 0.9}, "provision must be at least 1"),
        ({"provision": 1.1}, "provision belongs to the shares of skellam noise, got 1.1"),
    ],
)
def test_bad_releases_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        replace(RELEASE, **change)


@pytest.mark.parametrize(
    ("num_batches", "message"),
    [(0, "num_batches must be at least 1"), (65, "num_batches must be at most 64, got 65")],
)
def test_numbers_of_batches_out_of_range_are_refused(num_batches, message):
    for question in (RELEASE.noise, RELEASE.num_releases, RELEASE.noise_variance):
        with pytest.raises(InvalidInputError, match=message):
            question(num_batches)
