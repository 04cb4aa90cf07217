"""The conf of nginx: made of plans, without a client's address, and refused where it would lie."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from glob import glob
from pathlib import Path

import pytest
from campaign_world import plan_of
from cases import each_case
from secagg_cohort import stream

from fedtally.base.archive import replacing
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.folder import CANCELLED, CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.https.proxy import Backend, DapBackend, Front, Reports, conf
from fedtally.campaign.transports.pace import longest_answer
from fedtally.cli.app import run
from fedtally.cli.campaign_nginx import give
from fedtally.errors import InvalidInputError

ONE = Backend("survey", "ab" * 32, Path("/run/fedtally/survey.sock"), 10_000, 70_000, 60)


def test_limits_are_those_of_the_plans() -> None:
    other = replace(ONE, title="fruit", fingerprint="cd" * 32, most_bytes=123_456, phase=600)
    text = conf([ONE, other], Front())
    survey, fruit = text.split("location = ")[1:]
    assert "client_max_body_size 70000;" in survey and "proxy_read_timeout 80s;" in survey
    assert "client_max_body_size 123456;" in fruit and "proxy_read_timeout 620s;" in fruit
    assert f"/v1/campaigns/{'ab' * 32}/step " in survey
    assert "zone=fedtally:10m" in text  # 20,000 tokens, and as many that somebody made up
    assert "ssl_protocols TLSv1.2 TLSv1.3;" in text
    assert text.count("\nupstream ") == text.count("proxy_pass") == 2


def test_the_zone_of_tokens_grows_with_the_clients_and_is_never_tiny() -> None:
    # nginx takes 256 bytes for a token, and somebody may make tokens up in a small campaign, too
    for clients, size in ((1, 10), (10_000, 10), (200_000, 98)):
        assert f"zone=fedtally:{size}m " in conf([replace(ONE, num_clients=clients)], Front())


def test_no_conf_writes_an_address_down() -> None:
    text = conf([ONE], Front())
    assert "access_log off;" in text
    assert re.findall("error_log .*", text) == ["error_log /var/log/nginx/fedtally.log alert;"]
    # nor does the campaign's process hear it
    assert not re.search(r"remote_addr|X-Forwarded|X-Real|limit_conn_zone|limit_conn ", text)


def test_a_token_has_one_share_however_its_header_is_written() -> None:
    [rule] = re.findall('"~\\*(.*)" \\$fedtally_token;', conf([ONE], Front()))
    key = re.compile(rule.replace("?<", "?P<"), re.IGNORECASE)
    for header in ("Bearer abc", "bearer abc", "BEARER    abc"):
        found = key.search(header)
        assert found is not None and found["fedtally_token"] == "abc", header
    for header in ("", "abc", "Basic abc", "Bearer", "Bearer a b"):
        assert key.search(header) is None, header


def test_a_campaign_that_is_over_needs_no_process() -> None:
    text = conf([replace(ONE, socket=None)], Front())
    assert "step { return 410; }" in text
    assert "proxy_pass" not in text and "upstream" not in text and "limit_req " not in text


@each_case(
    ("backend", "front", "why"),
    [
        (replace(ONE, title="a b"), Front(), "campaign 'a b' would mean something else"),
        (replace(ONE, title="a\nb"), Front(), "would mean something else"),
        (replace(ONE, socket=Path("/run/a;b")), Front(), "socket '/run/a;b' would mean"),
        (replace(ONE, socket=Path("/run") / ("a" * 96)), Front(), "has 101 letters, and at most"),
        (ONE, Front(listen=("443", "444 ssl; #")), "address '444 ssl; #' would"),
        (ONE, Front(host="$host"), "host '\\$host' would"),
        (ONE, Front(host=""), "host '' would"),
        (ONE, Front(certificate="/a{"), "path '/a{' would"),
        (ONE, Front(certificate_key="/a}"), "path '/a}' would"),
        (ONE, Front(errors="/a'"), 'path "/a\'" would'),
    ],
)
def test_what_nginx_would_read_otherwise_is_refused(
    backend: Backend, front: Front, why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        conf([backend], front)


def test_two_campaigns_need_two_plans() -> None:
    with pytest.raises(InvalidInputError, match="again and survey have the same plan"):
        conf([ONE, replace(ONE, title="again")], Front())


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignFolder:
    """A campaign in the working directory."""
    monkeypatch.chdir(tmp_path)
    create_key_files("server.key", "server", stream("server"))
    plan_of(trust=None).save("plan.toml")
    return CampaignFolder.create(
        "survey",
        "plan.toml",
        server_key="server.key",
        mark="mark",
        deadlines=Deadlines(phase=100),
    )


def test_the_command_prints_the_conf(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--host", "sums.example.org", "--address", "8443", "--address", "[::]:8443"]
    assert run(["campaign", "nginx", "survey", *options, "--sockets", "/run/x"]) == 0
    text = capsys.readouterr().out
    assert "server unix:/run/x/survey.sock max_fails=0" in text
    assert "listen 8443 ssl;\n  listen [::]:8443 ssl;\n  server_name sums.example.org;" in text
    assert f"client_max_body_size {longest_answer(survey.plan)};" in text
    assert "proxy_read_timeout 120s;" in text
    assert f"location = /v1/campaigns/{survey.plan.fingerprint}/step" in text


def test_a_conf_in_a_file_is_whole_or_what_it_was(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["campaign", "nginx", "survey", "--host", "sums.example.org"]
    assert run(asked) == 0
    printed = capsys.readouterr().out
    served = Path("conf.d")
    served.mkdir()
    place = served / "fedtally.conf"
    place.write_text("the conf of yesterday")
    for wrong in (["--ended"], ["--host", "a b"], ["--certificate", str(place)]):
        assert run([*asked, *wrong, "--output", str(place)]) == 2
        assert place.read_text() == "the conf of yesterday" and os.listdir(served) == [place.name]
    capsys.readouterr()
    with monkeypatch.context() as patched:  # as on a full disk
        patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
        assert run([*asked, "--output", str(place)]) == 1  # not 2: the input is right
    assert "disk full" in capsys.readouterr().err
    assert place.read_text() == "the conf of yesterday" and os.listdir(served) == [place.name]
    assert run([*asked, "--output", str(place)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and f"wrote {place}" in err
    assert place.read_text() == printed
    # nginx leaves a half-written one beside it alone: its name begins with a dot
    with replacing(place) as half:
        assert Path(half).parent == served.resolve()
        assert glob(str(served / "*.conf")) == [str(place)]


def test_a_conf_that_works_is_not_replaced_by_one_without_its_certificate(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the options of the first time are left out: nginx would start no more."""
    place = Path("fedtally.conf")
    asked = ["campaign", "nginx", "survey", "--output", str(place)]
    own = ["--certificate", "own.pem", "--certificate-key", "own.key"]
    # a machine that makes the conf of another one has neither file
    assert run([*asked, *own]) == 0
    first = place.read_text()
    for changed, lost, instead in (
        ([], "own.pem", "/etc/nginx/fedtally.pem"),
        (own[:2], "own.key", "/etc/nginx/fedtally.key"),
        ([*own[:1], "other.pem", *own[2:]], "own.pem", "other.pem"),
    ):
        capsys.readouterr()
        assert run([*asked, *changed]) == 2
        err = " ".join(capsys.readouterr().err.split())
        # nginx would look for a relative path beside its own conf
        lost, instead = (str(Path(name).absolute()) for name in (lost, instead))
        assert f"{place} names the file {lost}, and there is no {instead}" in err
        assert "--certificate" in err and place.read_text() == first
    # the same again, and another one that is there
    Path("other.pem").touch()
    assert run([*asked, *own, "--host", "sums.example.org"]) == 0
    assert run([*asked, "--certificate", "other.pem", *own[2:]]) == 0
    assert f"ssl_certificate {Path('other.pem').absolute()};" in place.read_text()


def test_a_conf_overwrites_no_private_key(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["campaign", "nginx", "survey", "--output", "server.key"]) == 2
    assert "keys are never overwritten" in capsys.readouterr().err


def test_410_is_for_campaigns_that_are_over(
    survey: CampaignFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["campaign", "nginx", "survey", "--ended"]) == 2
    assert "no campaign of survey is over" in capsys.readouterr().err
    survey.cancel()
    assert (survey.path / CANCELLED).exists()
    assert run(["campaign", "nginx", "survey"]) == 0
    assert "410" not in capsys.readouterr().out  # its process may still say so
    assert run(["campaign", "nginx", "survey", "--ended"]) == 0
    assert "return 410;" in capsys.readouterr().out


def test_a_conf_does_not_replace_that_of_another_kind_of_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Campaigns of a host stand in one file, and each server of two in one of its own."""
    monkeypatch.chdir(tmp_path)
    socket, place = Path("/run/fedtally/x.sock"), Path("fedtally.conf")
    leader = Reports("survey", "leader", "ab" * 32, socket, 5000)
    dap = DapBackend("survey", "leader", "task", "", socket, 5000)
    fruit = replace(ONE, title="fruit", fingerprint="cd" * 32)
    kinds = {
        "campaign nginx": partial(conf, [ONE]),
        "aggregate leader nginx": leader.conf,
        "aggregate helper nginx": replace(leader, side="helper").conf,
        "dap leader nginx": dap.conf,
    }
    front = {"certificate": "a.pem", "certificate_key": "a.key"}
    for command, made in kinds.items():
        place.unlink(missing_ok=True)
        give(made, str(place), **front)
        first = place.read_text()
        for other in kinds.values():
            if other is made:
                give(other, str(place), **front, host="sums.example.org")
                give(other, str(place), **front)
                continue
            said = rf"fedtally {command} made for survey, .*name another file"
            with pytest.raises(InvalidInputError, match=said):
                give(other, str(place), **front)
            assert place.read_text() == first
    with pytest.raises(InvalidInputError, match="made for survey"):
        give(replace(dap, title="other").conf, str(place), **front)
    place.unlink()
    for campaigns in ([ONE], [ONE, fruit], [fruit]):
        give(partial(conf, campaigns), str(place), **front)
    place.write_text("server {}")  # of the operator, who names it
    give(leader.conf, str(place), **front)
    capsys.readouterr()
