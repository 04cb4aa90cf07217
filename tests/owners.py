"""An owner of an agent and a registrar, in one folder and by their commands alone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import said, session_of
from campaign_world import PEOPLE, SERVER_KEY, N, plan_of

from fedtally.agent.agent import Agent
from fedtally.agent.settings import FILE, Settings
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.key_files import create_key_files, load_client_key
from fedtally.cli import plan_facts
from fedtally.cli.app import run
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import AbortCode, Kind


class Owner:
    """An owner whose agent is empty, and whose registrar has listed it.

    Attributes:
        out, err: what the last command printed.
        log: what its agent noted.
    """

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.agent, self.capsys = place, place / "agent", capsys
        self.out = self.err = ""
        self.log: list[str] = []
        self._sessions = 0
        create_key_files(place / "registrar.key", "registrar", lambda size: bytes([200]) * size)
        assert self.run("agent", "init", str(self.agent)) == 0
        identity = load_client_key(self.agent / "key" / "agent.key").public
        self.listed = AllowList(sorted([identity, *(one.public for one in PEOPLE[: N - 1])]))
        save_allow_list(place / "list", self.listed)
        self.settle()

    def settle(self, registrar: str = 'registrar = "../registrar.key.pub"') -> None:
        """Fill in agent.toml, with or without a registrar."""
        (self.agent / "items.txt").write_text("7\n")
        (self.agent / "items.txt").chmod(0o600)
        (self.agent / FILE).write_text(
            f'{registrar}\n[items]\nfile = "items.txt"\n'
            "[policy]\nepsilon = 100.0\ndelta = 1e-6\nmin_honest = 4\n"
        )

    def plan(self, seed: int = 0, **changed: Any) -> Plan:
        """Return a plan that the owner's policy takes, with the list."""
        plan = plan_of("active", "distributed", rounds=3, **changed).without_keys()
        plan = Plan.from_dict(plan.to_dict() | {"seed": bytes([seed] * 32).hex()})
        return plan.with_keys(server_key=SERVER_KEY.public, allow_list=self.listed.digest)

    def run(self, *words: str) -> int:
        """Run a command and keep what it prints."""
        code = run(words)
        self.out, self.err = self.capsys.readouterr()
        return code

    def sign(self, name: str, *options: str, key: str = "registrar.key") -> int:
        """Let a registrar sign NAME.toml for a study: NAME.sig."""
        given = [str(self.place / f"{name}.toml"), "-o", str(self.place / f"{name}.sig")]
        if "--purpose" not in options:
            given += ["--purpose", "a study"]
        return self.run("keys", "sign", str(self.place / key), *given, *options)

    def accept(self, name: str, *options: str) -> int:
        """Let the owner accept NAME.toml, with NAME.sig if it is there."""
        signature = self.place / f"{name}.sig"
        signed = ["--signature", str(signature)] if signature.exists() else []
        plan, listed = self.place / f"{name}.toml", self.place / "list"
        given = [str(plan), "--allow-list", str(listed), *signed, "--agent", str(self.agent)]
        return self.run("agent", "accept", *given, *options)

    def revoke(self, *plans: Plan, key: str = "registrar.key") -> int:
        """Let a registrar revoke plans: ended.revoked."""
        given = [*(plan.fingerprint for plan in plans), "-o", str(self.place / "ended.revoked")]
        return self.run("keys", "revoke", str(self.place / key), *given)

    def hear(self) -> int:
        """Let the owner read ended.revoked."""
        notice = str(self.place / "ended.revoked")
        return self.run("agent", "accept", "--revocation", notice, "--agent", str(self.agent))

    def publish(self, name: str, *options: str, **changed: Any) -> Plan:
        """Write and sign a plan: NAME.toml and NAME.sig."""
        plan = self.plan(**changed)
        plan.save(self.place / f"{name}.toml")
        assert self.sign(name, *options) == 0, self.err
        return plan

    @property
    def accepted(self) -> list[str]:
        """The fingerprints below the folder of accepted plans."""
        return sorted(one.name for one in (self.agent / "campaigns").iterdir())

    def start(self) -> Agent:
        """Start the agent; what it notes goes to `log`."""
        return Settings.load(self.agent).agent(
            random=secrets.token_bytes, now=time.time(), log=lambda note: self.log.append(str(note))
        )

    def invite(self, plan: Plan, now: float, round: int = 0) -> bytes:
        """Return an Invite of the plan's server, to a session of its own."""
        self._sessions += 1
        return session_of(
            plan,
            ("owner", self._sessions),
            round=round,
            not_before=int(now) - 10,
            not_after=int(now) + 600,
            allow_list=self.listed,
        ).invite

    def asked(self, agent: Agent, plan: Plan, now: float | None = None) -> Kind | AbortCode | None:
        """Return what the agent says to an Invite."""
        now = time.time() if now is None else now
        return said(agent.answer(self.invite(plan, now), now))


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None
) -> list[str]:
    """Let somebody be at the terminal, who says yes; return the questions.

    Args:
        monkeypatch: undoes it.
        meanwhile: what somebody else does while they read.
    """
    asked: list[str] = []

    def answer(question: str, **_: Any) -> bool:
        asked.append(question)
        meanwhile()
        return True

    # Last where it is defined: a command that this imports would keep what stands there meanwhile.
    monkeypatch.setattr("fedtally.cli.agent.is_attended", lambda: True)
    monkeypatch.setattr("fedtally.cli.keys.is_attended", lambda: True)
    monkeypatch.setattr(plan_facts, "is_attended", lambda: True)
    monkeypatch.setattr("click.confirm", answer)
    return asked
