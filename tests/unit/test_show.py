"""The page of `fedtally show` holds the protocol's own numbers, and nothing that could run."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtally.answer.page import policy
from fedtally.answer.result import Result
from fedtally.answer.show_page import at_most, show_page
from fedtally.cli.app import run as command
from fedtally.crypto import keys
from fedtally.crypto.keys import Secret
from fedtally.crypto.prg import Masking
from fedtally.domain import Dictionary
from fedtally.errors import InvalidInputError
from fedtally.privacy.accounting import Guarantee, most_detected, privacy_loss
from fedtally.secagg import unmasking
from fedtally.simulation import demonstration
from fedtally.simulation.demonstration import Demonstration, demonstrate
from fedtally.simulation.randomness import campaign_seed
from fedtally.sketch import CountSketch
from fedtally.sources.sample_tables import WORDS

DOCS = Path(__file__).parents[2] / "docs"
SEED = 7
MODULUS = 2**16


@pytest.fixture(scope="module")
def masks() -> list[bytes]:
    """The keys of the self masks that the protocol opened, filled by `shown`."""
    return []


@pytest.fixture(scope="module")
def shown(masks: list[bytes]) -> Demonstration:
    derive = keys.self_mask_key

    def recorded(*arguments: Any) -> Secret:
        key = derive(*arguments)
        masks.append(bytes(key.reveal()))
        return key

    with pytest.MonkeyPatch.context() as patch:
        # the unmasking alone: clients derive theirs by the same name
        patch.setattr(unmasking, "keys", _With(keys, self_mask_key=recorded))
        return demonstrate(SEED)


class _With:
    """A module with some of its names changed."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self._module = module
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@pytest.fixture(scope="module")
def data(shown: Demonstration) -> dict[str, Any]:
    return read(show_page(shown._asdict()))


def read(page: str) -> dict[str, Any]:
    """Return what the script of a page reads."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return dict(json.loads(found))


def integers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).astype(np.int64)


def centred(total: np.ndarray) -> np.ndarray:
    return (total + MODULUS // 2) % MODULUS - MODULUS // 2


def page_sum(data: dict[str, Any]) -> np.ndarray:
    """Return the sum that the page's arrays have, of all phones."""
    uploads = integers(data["uploads"], "<u2").reshape(demonstration.PHONES, -1)
    return centred(uploads.sum(axis=0) - integers(data["opened"], "<u2"))


def test_the_uploads_less_the_opened_masks_are_the_sum_of_the_sketches(
    shown: Demonstration, data: dict[str, Any]
) -> None:
    assert data["bits"] == 16
    np.testing.assert_array_equal(page_sum(data), shown.sketches.sum(axis=0))
    # and what the server released, of which the library made its answer
    np.testing.assert_array_equal(page_sum(data), integers(data["levels"][0]["released"], "<i2"))
    # the test sees an array that is altered
    uploads = integers(data["uploads"], "<u2").astype("<u2")
    uploads[5] += 1
    altered = data | {"uploads": base64.b64encode(uploads.tobytes()).decode()}
    assert (page_sum(altered) != shown.sketches.sum(axis=0)).sum() == 1


def test_the_opened_masks_are_those_of_the_secrets_that_the_protocol_opened(
    shown: Demonstration, masks: list[bytes]
) -> None:
    assert len(set(masks)) == demonstration.PHONES
    total = np.zeros(shown.uploads.shape[1], "<u2")
    masking = Masking(total)
    for key in masks:
        masking.add(Secret(key))
    np.testing.assert_array_equal(total, shown.opened)


def test_no_199_uploads_give_their_sum(shown: Demonstration) -> None:
    everything = shown.uploads.astype(np.int64).sum(axis=0) - shown.opened
    for phone in range(demonstration.PHONES):
        rest = centred(everything - shown.uploads[phone])
        is_right = rest == shown.sketches.sum(axis=0) - shown.sketches[phone]
        assert is_right.sum() <= 5  # of 512, each by a chance of 2^-16
        assert np.abs(rest).mean() > 10_000  # uniform numbers have 16,384


def test_an_upload_is_far_from_the_sketch_that_it_hides(shown: Demonstration) -> None:
    apart = np.abs(centred(shown.uploads.astype(np.int64) - shown.sketches))
    assert (apart.mean(axis=1) > 13_000).all() and (apart.mean(axis=1) < 20_000).all()
    assert (np.abs(shown.sketches).sum(axis=1) == demonstration.ROWS).all()


def test_the_sketches_in_the_page_are_those_of_the_phones(
    shown: Demonstration, data: dict[str, Any]
) -> None:
    marks = integers(data["marks"], "<i2").reshape(demonstration.PHONES, -1)
    drawn = np.zeros_like(shown.sketches)
    for phone, row in enumerate(marks):
        drawn[phone, np.abs(row) - 1] = np.sign(row)
    np.testing.assert_array_equal(drawn, shown.sketches)


def test_the_bars_are_what_the_library_decodes_from_the_sum(
    shown: Demonstration, data: dict[str, Any]
) -> None:
    domain = Dictionary(list(WORDS[: demonstration.CANDIDATES]))
    plan, _ = demonstration._planned(domain, campaign_seed(SEED), SEED, {"secure_sum": "secagg"})
    total = CountSketch(plan.spec, 0)
    total.vector += page_sum(data)
    total.num_clients = demonstration.PHONES
    found = Result(plan, domain, [total]).estimates(data["words"])
    level = data["levels"][0]
    for name, values in (
        ("counts", [one.frequency for one in found]),
        ("low", [one.low for one in found]),
        ("high", [one.high for one in found]),
    ):
        np.testing.assert_allclose(level[name], np.array(values) * demonstration.PHONES, atol=1e-3)
    # the truth beside it
    assert data["truth"] == np.bincount(shown.held).tolist()
    assert data["truth"] == sorted(data["truth"], reverse=True)
    np.testing.assert_allclose(level["counts"][:3], data["truth"][:3], atol=1)


def test_each_epsilon_has_noise_of_its_own_as_large_as_its_plan_says(
    shown: Demonstration,
) -> None:
    domain = Dictionary(list(WORDS[: demonstration.CANDIDATES]))
    noises = []
    for level in shown.levels[1:]:
        asked = {"epsilon": level.epsilon, "not_private": True}
        plan, _ = demonstration._planned(domain, campaign_seed(SEED), SEED, asked)
        assert plan.privacy is not None
        noise = level.released - shown.levels[0].released
        assert noise.std() == pytest.approx(plan.privacy.stddev, rel=0.2)  # 6 deviations
        noises.append(noise / noise.std())
    correlations = np.corrcoef(noises) - np.eye(len(noises))
    assert np.abs(correlations).max() < 0.27  # 6 deviations


def test_what_an_attacker_finds_is_what_the_accounting_bounds(
    shown: Demonstration, data: dict[str, Any]
) -> None:
    domain = Dictionary(list(WORDS[: demonstration.CANDIDATES]))
    assert [level.epsilon for level in shown.levels] == [None, *demonstration.EPSILONS]
    assert (shown.levels[0].promised, data["levels"][0]["promised"]) == (1.0, "100\xa0%")
    for level, told in zip(shown.levels[1:], data["levels"][1:], strict=True):
        asked = {"epsilon": level.epsilon, "not_private": True}
        plan, _ = demonstration._planned(domain, campaign_seed(SEED), SEED, asked)
        assert plan.privacy is not None
        found: Guarantee = plan.privacy.guarantee
        assert found.epsilon <= level.epsilon
        assert level.promised == most_detected(
            found.epsilon, found.delta, demonstration.FALSE_ALARMS
        )
        loss = privacy_loss(plan.privacy.event)
        by_noise = most_detected(loss.loss[:-1], loss.delta[:-1], demonstration.FALSE_ALARMS)
        assert level.proven == min(level.promised, by_noise)
        assert demonstration.FALSE_ALARMS < level.proven <= level.promised
        assert told["promised"] == at_most(level.promised)
        assert told["proven"] == at_most(level.proven)


def test_the_documentation_has_the_same_shares() -> None:
    rows = re.findall(
        r"^\| ([\d.]+) \| [\d.,]+ \| ([\d.]+) % \|", (DOCS / "privacy.md").read_text(), re.M
    )
    assert len(rows) == 6
    for epsilon, share in rows:
        assert at_most(most_detected(float(epsilon), 1e-6, 0.05)) == f"{share}\xa0%"


def test_a_seed_gives_the_same_campaign_and_none_a_new_one(
    shown: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "EPSILONS", (1.0,))
    again, other = demonstrate(SEED), demonstrate(None)
    np.testing.assert_array_equal(again.uploads, shown.uploads)
    (same,) = [level for level in shown.levels if level.epsilon == 1.0]
    np.testing.assert_array_equal(again.levels[1].released, same.released)
    assert (other.uploads != shown.uploads).mean() > 0.99


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_is_small_and_loads_nothing(shown: Demonstration) -> None:
    page = show_page(shown._asdict())
    assert len(page.encode()) <= 1_500_000
    assert "http://" not in page and "https://" not in page and "{{" not in page
    elements = _Elements()
    elements.feed(page)
    names = [name for name, _ in elements.found]
    assert names.count("script") == 2 and names.count("style") == 1
    assert not {"link", "img", "iframe"} & set(names)
    assert not [a for _, a in elements.found if {"src", "href", "style", "onclick"} & a.keys()]
    (told,) = [a["content"] for _, a in elements.found if "http-equiv" in a]
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert told == policy(style, script)  # of these very texts, and of nothing else


def test_a_hostile_word_ends_no_element(shown: Demonstration) -> None:
    hostile = "</script><b>{{data}}"
    page = show_page(shown._asdict() | {"words": (hostile, *shown.words[1:])})
    assert "</script><b>" not in page and "<b>{{" not in page
    assert read(page)["words"][0] == hostile


def test_without_a_script_a_table_has_the_answers(shown: Demonstration) -> None:
    page = show_page(shown._asdict())
    (table,) = re.findall(r"<noscript>(<table>.*?)</noscript>", page, re.S)
    assert f"<th scope=row>{shown.words[0]}</th><td>{np.bincount(shown.held)[0]}</td>" in table
    assert at_most(shown.levels[4].promised) in table


def test_uploads_that_the_page_cannot_add_are_refused(shown: Demonstration) -> None:
    with pytest.raises(InvalidInputError, match="bits must be at most 16, got 17"):
        show_page(shown._asdict() | {"bits": 17})


def test_the_command_writes_a_page_and_overwrites_nothing(
    shown: Demonstration,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demonstration, "demonstrate", lambda seed, report: shown)
    monkeypatch.chdir(tmp_path)
    assert command(["show"]) == 0
    assert (tmp_path / "show.html").read_text("utf-8") == show_page(shown._asdict())
    assert "wrote show.html (" in capsys.readouterr().err
    (tmp_path / "mine.html").write_text("mine")
    assert command(["show", "-o", "mine.html"]) == 2
    assert "mine.html exists already" in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert command(["show", "-o", "page.pdf"]) == 2
    assert "a page must end in .html, got 'page.pdf'" in capsys.readouterr().err
    assert command(["show", "-o", "nowhere/page.html"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "show.html"]
