"""The section on how sums were made, who saw them, and who could learn what on which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtally.answer import amounts
from fedtally.answer.sections import counted, dap_sums
from fedtally.base.text import in_number, in_range
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, Sums

if TYPE_CHECKING:
    from fedtally.secagg.config import TwoServerConfig
    from fedtally.secagg.params import Parameters

_SERVER_SEES = "; it sees exact sums, and adds the noise"
_LEADER_SEES = "; the leader sees exact sums, and adds the noise"
_SEVERAL = 4  # if a round has more sums than this, losing one of them leaves out few clients
_NOT_TOGETHER = "the two servers do not work together"
_APART = f"{_NOT_TOGETHER}, and neither chose the list of keys"


def seen(traffic: Mapping[str, Any]) -> str:
    """Return in words which party sees which sums.

    Args:
        traffic: the field `secure_sum` of a result.
    """
    if dap_sums.is_dap(traffic):
        return dap_sums.seen(traffic)
    if traffic["method"] == "ideal":
        return "ideal secure summation: the server would see only these sums"
    if traffic["method"] == "two-server":
        return "the servers, unless they collude, see only these sums"
    # If the sums were made elsewhere, only the plan's fields are known, without numbers of cohorts.
    if "cohorts" not in traffic:
        return "the server sees only these sums, or those of the cohorts that add up to them"
    sums = in_number(traffic["cohorts"], "these sums", "the sum of each cohort")
    return f"the server sees only {sums}"


def rows(plan: Plan, traffic: Mapping[str, Any], part: str = "client") -> list[tuple[str, str]]:
    """Return rows of (name, text) on how the sums were made; [] if no protocol hid the vectors.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result. Fields that only a run knows may be missing.
        part: the noun for what a sum adds up: "client", "contribution" or "silo".

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> rows(plan, {"method": "ideal"})
    []
    """
    if dap_sums.is_dap(traffic):
        return dap_sums.rows(traffic)
    if traffic["method"] == "ideal":
        return []
    noun = counted.who(plan)
    corrupt = corruptible(traffic["corrupt"], noun, _listed(plan))
    bits = f"{traffic['bits']}-bit counters"
    if "cohorts" not in traffic:
        return [
            ("Secure sum", _trust(traffic, noun)),
            *_validity(traffic),
            ("", f"up to {corrupt} corrupt; {bits}; summed elsewhere, by the plan"),
        ]
    known = [
        ("Secure sum", _trust(traffic, noun)),
        *_validity(traffic),
        ("", f"{_cohorts(traffic, noun)}, up to {corrupt} corrupt; {bits}"),
        ("", _attendance(traffic, part)),
        *([("Screening", screened(traffic["screening"]))] if "screening" in traffic else []),
    ]
    # Sums of real agents or servers name an engine. Only a simulation knows all bytes and seconds.
    if "engine" in traffic:
        return known
    return [
        *known,
        ("Messages", _traffic(traffic, "up", noun)),
        ("", _traffic(traffic, "down", noun)),
        *_cpu(traffic, noun),
    ]


def _validity(traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    said = validity(traffic.get("validity"))
    return [("", said)] if said else []


def validity(name: str | None) -> str:
    """Return in words whether clients' reports to two servers have proofs that they are valid.

    Args:
        name: "proofs" or "none"; None: there is nothing to say, and the text is "".

    >>> validity(None), validity("none")
    ('', 'reports have no proofs: a client that lies is not found out')
    """
    if name is None:
        return ""
    if name == "none":
        return "reports have no proofs: a client that lies is not found out"
    return "each report has a proof that it has the form of one item; any other is refused"


def line(traffic: Mapping[str, Any], part: str) -> str:
    """Return in words who saw the sums and how many clients are in them; "" for "ideal" sums.

    "ideal" is the method without a protocol: clients' vectors are added in the clear.

    Args:
        traffic: the field `secure_sum` of a result.
        part: the noun for what a sum adds up: "client", "contribution" or "silo".

    >>> line({"method": "ideal"}, "client")
    ''
    """
    if dap_sums.is_dap(traffic):
        return dap_sums.line(traffic)
    if traffic["method"] == "ideal":
        return ""
    said = f"{traffic['method']}: {seen(traffic)}"
    # If the sums were made elsewhere, only the plan's fields are known, without numbers.
    said = f"{said}; {_attendance(traffic, part)}" if "cohorts" in traffic else said
    # Proofs are the normal case, so the line mentions them only if there are none.
    return f"{said}; {validity('none')}" if traffic.get("validity") == "none" else said


def _cpu(traffic: Mapping[str, Any], noun: str) -> list[tuple[str, str]]:
    # A private run has no times: they could reveal how many items a client holds.
    if traffic["client_seconds"] is None:
        return []
    text = (
        f"{1e3 * traffic['client_seconds']:.2g} ms a {noun}, {traffic['server_seconds']:.2g} s at"
        " the server"
    )
    return [("CPU", text)]


def _trust(traffic: Mapping[str, Any], noun: str) -> str:
    if traffic["method"] == "two-server":
        return (
            f"two servers that do not collude; at least {traffic['min_survivors']:,} clients in"
            " a sum"
        )
    server = (
        "that follows the protocol" if traffic["adversary"] == "semi-honest" else "that may lie"
    )
    return (
        f"secagg against a server {server}: {traffic['neighbours']} neighbours, any"
        f" {traffic['threshold']} of {traffic['neighbours'] + 1} shares open a mask, at least"
        f" {traffic['min_survivors']:,} {noun}s in a sum"
    )


def honesty(least: int) -> str:
    """Return which setting owners of agents need in agent.toml so that they accept a plan.

    Args:
        least: the fewest honest clients in a sum with which the plan's promises hold.

    >>> honesty(3)
    'owners need min_honest = 3 or less in agent.toml'
    """
    return f"owners need min_honest = {least} or less in agent.toml"


def _cohorts(traffic: Mapping[str, Any], noun: str) -> str:
    least, most = traffic["smallest_cohort"], traffic["largest_cohort"]
    return f"{amounts.counted(traffic['cohorts'], 'cohort')} of {in_range(least, most)} {noun}s"


def _attendance(traffic: Mapping[str, Any], part: str) -> str:
    counted_in = f"{traffic['survivors']:,} of {amounts.counted(traffic['clients'], part)}"
    left_out = traffic.get("screening", {}).get("clients_left_out", 0)
    screened_out = f" ({left_out:,} of them in cohorts that are left out)" if left_out else ""
    if traffic.get("engine") == "agents":
        counted_in += " that were asked are in the sums"
        return f"{counted_in}{screened_out}; an agent answered for each"
    if refused := traffic.get("refused", 0):
        counted_in += f" in the sums, {amounts.counted(refused, 'report')} refused"
    else:
        counted_in += f" in the sums{screened_out}"
    if "engine" in traffic:  # real servers: the clients that did not report are unknown
        return counted_in
    gone = f"{traffic['dropouts']:,} dropped out" if traffic["dropouts"] else "nobody dropped out"
    # Some clients drop out after their vector is in the sum. They are counted twice, as survivors
    # and as dropouts, so say how many they are.
    if (late := traffic["survivors"] + traffic["dropouts"] - traffic["clients"]) > 0:
        gone += f", {late:,} of them after their part was in"
    equal = (
        "the sums equal the plain sums exactly"
        if traffic["equals_plain_sum"]
        else "not compared with plain sums"
    )
    return f"{counted_in}, {gone}; {equal}"


def screened(told: Mapping[str, Any]) -> str:
    """Return in words what screening found when it compared the sums of cohorts.

    Args:
        told: the field `screening` of `Result.secure_sum`.

    >>> screened({"screen": "off", "why": "", "rounds": []})
    'off'
    >>> found = {"round": 0, "cohorts": 20, "verdict": "consistent", "stand_out": 0,
    ...          "votes": 1.002, "votes_limit": 1.08, "mean_square": 0.99,
    ...          "mean_square_limit": 1.41}
    >>> screened({"screen": "warn", "why": "", "rounds": [found]})
    '20 cohorts fit honest clients: votes 1.00 (limit 1.08), mean square 0.99 (limit 1.41)'
    """
    if told["screen"] == "off":
        return f"off: {told['why']}" if told["why"] else "off"
    looked = [found for found in told["rounds"] if "votes" in found]
    missed = [found for found in told["rounds"] if "votes" not in found]
    if not looked:
        return f"off: {missed[0]['why']}" if missed else "off: no cohort landed"
    # the round that comes nearest to a limit, or exceeds a limit by most
    worst = max(
        looked,
        key=lambda found: max(
            (found["votes"] - 1) / (found["votes_limit"] - 1),
            (found["mean_square"] - 1) / (found["mean_square_limit"] - 1),
        ),
    )
    fits = sum(found["verdict"] == "consistent" for found in looked)
    if len(looked) > 1:
        who = f"{fits:,} of {len(looked):,} rounds fit honest clients; at worst"
    elif worst["verdict"] == "poisoned":
        who = f"{worst['cohorts']:,} cohorts do not fit honest clients:"
    else:
        of = "" if fits else f"{worst['cohorts'] - worst['stand_out']:,} of "
        who = f"{of}{worst['cohorts']:,} cohorts fit honest clients:"
    figures = (
        f"votes {worst['votes']:.2f} (limit {worst['votes_limit']:.2f}), mean square"
        f" {worst['mean_square']:.2f} (limit {worst['mean_square_limit']:.2f})"
    )
    rest = (
        f"; {amounts.counted(len(missed), 'round')} not screened: {missed[0]['why']}"
        if missed
        else ""
    )
    return f"{who} {figures}{rest}"


def _traffic(traffic: Mapping[str, Any], way: str, noun: str) -> str:
    name = f"{way}load_bytes"
    parts = [
        f"{stage['stage']} {amounts.size(stage[name])}"
        for stage in traffic["stages"]
        if stage[name]
    ]
    return f"{way} {amounts.size(traffic[name])} a {noun}{': ' if parts else ''}{', '.join(parts)}"


def learned(plan: Plan, traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows of (who, text) on who could learn what, and on which conditions.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result. Fields that only a run knows may be missing.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> learned(plan, {"method": "ideal"})[1]
    ('Whoever made the sums', 'all that each client holds, for no secure sum was run')
    """
    method, noun = traffic["method"], counted.who(plan)
    central = plan.protection.of_release() is not None
    adds = ", and added the noise" if central else ""
    reader = "what noised sums show: what it protects is above"
    if plan.privacy is None:
        reader = f"what exact sums show, also of what few {noun}s hold"
    elif plan.privacy.not_private:
        reader = "whatever the sums show: nothing is guaranteed"
    rows = [("Readers of this page", reader)]
    if dap_sums.is_dap(traffic):
        return [*rows, *dap_sums.learned(traffic)]
    if method == "ideal":
        everything = f"all that each {noun} holds, for no secure sum was run{adds}"
        return [*rows, ("Whoever made the sums", everything)]
    exact = "noised" if plan.protection.sums is Sums.NOISED else "exact"
    sums = f"{exact} sums over at least {traffic['min_survivors']:,} {noun}s{adds}"
    if method == "two-server":
        has_proofs = traffic.get("validity") == "proofs"
        proven = "; it is trusted to refuse wrong reports" if has_proofs else ""
        helpers = _helping(traffic["corrupt"], noun, _listed(plan), "one of them")
        rows += [
            ("The two servers", "who took part"),
            ("", f"no {noun}'s part, as long as {_APART}, and {helpers}"),
            ("The leading server", f"{sums}{proven}"),
            (f"Other {noun}s", "nothing"),
        ]
    else:
        is_curious = traffic["adversary"] == "semi-honest"
        does = "it follows the protocol" if is_curious else "it did not choose the list of keys"
        helpers = _helping(traffic["corrupt"], noun, _listed(plan))
        rows += [
            ("The server", f"who took part, and {sums}"),
            ("", f"no {noun}'s part, as long as {does} and {helpers}"),
            (f"Other {noun}s", "how many took part" if is_curious else "who took part"),
        ]
    if "cohorts" in traffic and "engine" not in traffic:
        everything = f"all that each {noun} holds: the {noun}s were simulated"
        rows.append(("Whoever ran this", everything))
    return rows


class ClientList(NamedTuple):
    """The list of clients that may take part. Nobody else may.

    Without a list, a server that lies could invent clients. With a list, it can still choose which
    listed clients are in a sum.

    Attributes:
        length: the number of listed clients; None: it is unknown.
    """

    length: int | None = None


def corruptible(most: int, noun: str, listed: ClientList | None) -> str:
    """Return in words how many clients may be corrupt, and among which clients.

    Args:
        most: the most corrupt clients with which the plan's promises hold.
        noun: the singular noun for who takes part, "client" or "silo".
        listed: the list of clients: then at most `most` clients on the whole list may be corrupt.
            None: there is no list, and at most `most` clients in one sum may be corrupt.

    >>> corruptible(1, "client", None), corruptible(1200, "silo", None)
    ('1 client of a sum', '1,200 silos of a sum')
    >>> corruptible(10, "client", ClientList(20_000)), corruptible(10, "client", ClientList())
    ('10 of all 20,000 listed clients', '10 of all listed clients')
    """
    if listed is None:
        return f"{amounts.counted(most, noun)} of a sum"
    length = "" if listed.length is None else f"{listed.length:,} "
    return f"{most:,} of all {length}listed {noun}s"


def _helping(most: int, noun: str, listed: ClientList | None, whom: str = "it") -> str:
    """Return in words how many clients may work with a server.

    Args:
        most: the most corrupt clients with which the plan's promises hold.
        noun: the singular noun for who takes part, "client" or "silo".
        listed: the list of clients; None: there is no list (see `corruptible`).
        whom: the pronoun for the server, at the end of the text: "it", or "one of them".

    >>> _helping(1, "client", None)
    'at most 1 client of a sum works with it'
    >>> _helping(10, "client", ClientList(20_000), "one of them")
    'at most 10 of all 20,000 listed clients work with one of them'
    """
    work = in_number(most, "works", "work")
    return f"at most {corruptible(most, noun, listed)} {work} with {whom}"


def _listed(plan: Plan) -> ClientList | None:
    if not plan.summing.is_listed:
        return None
    # `num_clients` counts a client once for each of its rounds. So it is the length of the list
    # only if every client takes part once.
    return ClientList(plan.num_clients if plan.protection.lifetime == 1 else None)


def planned_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return rows of (name, text) on how a plan will make its sums, and whom it trusts.

    The first row, "Trust", has the assumptions on which the plan's promises rest.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> planned_rows(plan)[0]
    ('Trust', 'the server sees what each client sends (--secure-sum secagg: only sums)')
    """
    from fedtally.secagg.config import SecAggConfig
    from fedtally.secagg.params import Adversary

    agreed, whom = plan.secure_sum, counted.who(plan)
    if agreed is None:
        trusted = f"the server sees what each {whom} sends (--secure-sum secagg: only sums)"
        said = "ideal: of a trusted server (--secure-sum names a protocol)"
        return [("Trust", trusted), ("Secure sum", said)]
    if not isinstance(agreed, SecAggConfig):
        return [
            ("Trust", _trust_in_two(plan, agreed)),
            ("Secure sum", f"two servers; at least {agreed.min_batch:,} clients in a sum"),
            ("", honesty(agreed.honest_survivors)),
            ("", validity(agreed.validity)),
        ]
    p = agreed.parameters
    # If the server adds the noise, it sees the sums before. The row "Trust" must say so.
    sees = _SERVER_SEES if plan.protection.of_release() is not None else ""
    server = {
        Adversary.SEMI_HONEST: "the server follows the protocol (--adversary active: it may lie)",
        Adversary.ACTIVE: "the server may lie, but did not choose the list of keys",
    }[p.adversary]
    helpers = _helping(p.corrupt, whom, _listed(plan))
    graph, of_list = p.graph(p.n_max), " of the list" if plan.summing.is_listed else ""
    sizes = in_range(p.n_min, p.n_max)
    text = (
        f"secagg, {p.adversary}: cohorts of {sizes} {whom}s,"
        f" {graph.neighbours} neighbours, up to {p.corrupt:,}{of_list} corrupt, at least"
        f" {p.min_survivors:,} {whom}s in a sum"
    )
    return [
        ("Trust", f"{server}; {helpers}{sees}"),
        ("Secure sum", text),
        ("", honesty(p.honest_survivors)),
    ]


def _trust_in_two(plan: Plan, agreed: TwoServerConfig) -> str:
    """Return in words whom a plan for two servers trusts.

    Args:
        plan: the plan.
        agreed: its terms of the secure sum.
    """
    whom, terms = counted.who(plan), plan.privacy
    helpers = _helping(agreed.corrupt, whom, _listed(plan), "one of them")
    if terms is None or terms.not_private or plan.protection.of_server() is None:
        # If a server adds the noise, it sees the sums before, and the text must say so.
        is_central = plan.protection.of_release() is not None
        return f"{_APART}; {helpers}{_LEADER_SEES if is_central else ''}"
    # The noise of one honest server is enough. C only bounds in how large a crowd a client is.
    return (
        f"{_NOT_TOGETHER}: epsilon then holds however many {whom}s are corrupt; for at least"
        f" {agreed.honest_survivors:,} honest {whom}s in a sum, neither chose the list of keys, and"
        f" {helpers}"
    )


def cautions(plan: Plan) -> list[str]:
    """Return warnings of a real campaign of the plan: a list, empty if there is nothing to warn of.

    A plan may lose a sum as soon as one client is missing or drops out. Or it is for more clients
    than can be registered.
    """
    warnings = _longer_than_list(plan), _none_to_spare(plan), _bears_no_dropout(plan)
    return [said for said in warnings if said]


def _none_to_spare(plan: Plan) -> str:
    """Return a warning if all planned clients must take part, or almost all; else "".

    The result is also "" if a round has many sums. Then a client that stays away costs only a small
    part of its round.
    """
    from fedtally.plan.secure_sum import smaller_start

    whom, servers, cohorts = counted.who(plan), plan.summing.servers, plan.summing.cohorts
    if servers is not None and servers.min_batch == servers.n_max:
        return (
            f"a sum needs all {servers.n_max:,} {whom}s: if one stays away, there is no sum"
            " (--max-dropout allows for more, and so do more clients)"
        )
    if servers is not None:
        return (
            f"a sum needs {servers.min_batch:,} of {servers.n_max:,} {whom}s: while fewer have"
            " reported, it is not opened (--max-dropout allows for more that stay away)"
        )
    if cohorts is None:
        return ""
    p = cohorts.parameters
    in_round = -(-plan.max_round_clients // p.n_max)
    sums = plan.num_rounds * in_round
    # There is no warning if each sum can spare a client, and no warning if a round has many sums:
    # sums are filled one after the other, so only the last sum would have too few clients.
    if plan.num_clients - sums * p.n_min >= sums or in_round > _SEVERAL:
        return ""
    fewest = smaller_start(cohorts)
    way = ""
    if fewest is not None:
        way = f" (--cohort {p.n_max} --cohort-min {fewest} lets it begin with fewer)"
    lost = "there is no answer"
    if sums > 1:
        lost = f"its other {p.n_min - 1:,} are not counted"
    return (
        f"all {plan.num_clients:,} {whom}s must come: a sum begins with {p.n_min:,}, and if one of"
        f" them stays away, {lost}{way}"
    )


def _bears_no_dropout(plan: Plan) -> str:
    """Return a warning if one client that goes offline ends its sum; else ""."""
    cohorts, whom = plan.summing.cohorts, counted.who(plan)
    if cohorts is None or cohorts.parameters.absent(cohorts.parameters.n_min):
        return ""
    return (
        f"one {whom} that goes offline ends a sum of {cohorts.parameters.n_min:,}, and its other"
        f" {whom}s are not asked again (--max-dropout 0.05 bears more)"
    )


def short_of_list(plan: Plan, asked: float) -> str:
    """Return a warning if too few clients of a list may be corrupt; else "".

    A plan turns the asked share of one sum into a number of clients. A server that lies can choose
    who is in a sum. So for a plan with a list, this number bounds the corrupt clients on the whole
    list, of which it is a smaller share than the user may have meant.

    Args:
        plan: the plan of the campaign.
        asked: the share of the clients in one sum that may be corrupt (--max-corrupt).
    """
    listed, terms = _listed(plan), plan.summing.terms
    if listed is None or terms is None:
        return ""
    fewest = plan.fewest_clients
    if terms.corrupt >= asked * fewest:
        return ""
    who = corruptible(terms.corrupt, counted.who(plan), listed)
    return (
        f"--max-corrupt {asked:g} is of one sum, and a server that lies picks who is in it: {who}"
        f" (at most {amounts.percent(terms.corrupt / fewest)}) may be corrupt; a larger"
        " --max-corrupt, or larger sums, bear more"
    )


def _longer_than_list(plan: Plan) -> str:
    """Return a warning if a campaign with all planned clients needs too long a list; else ""."""
    from fedtally.secagg.allow_list import MAX_KEYS

    fewest = plan.fewest_clients
    if not plan.summing.is_listed or fewest <= MAX_KEYS:
        return ""
    return (
        f"no real campaign can have all {fewest:,} {counted.who(plan)}s: an allow-list has at most"
        f" {MAX_KEYS:,}; make several lists and plans, and fedtally merge joins the answers"
    )


def short_of_all(plan: Plan, asked: float) -> str:
    """Return a warning if fewer of all clients may be corrupt than asked for; else "".

    A plan bounds the number of corrupt clients in one sum. If clients are drawn at random for
    several sums, some sums get a larger share of corrupt clients than the share among all clients.
    So the share of corrupt clients among all clients must be smaller than `asked`.

    Args:
        plan: the plan of the campaign.
        asked: the share of the clients in one sum that may be corrupt (--max-corrupt).
    """
    from fedtally.plan.parts.summing import shared_out
    from fedtally.secagg.params import corrupt_clients
    from fedtally.secagg.proposal import EXCEEDED, corrupt_borne, corrupt_needed

    cohorts = plan.summing.cohorts
    everybody = plan.fewest_clients
    if cohorts is None or plan.summing.is_listed or cohorts.parameters.n_max >= everybody:
        return ""
    p, wanted = cohorts.parameters, corrupt_clients(asked, everybody)
    rounds = shared_out(plan.num_clients, plan.num_rounds)
    sums = len(plan.summing.sums(rounds, plan.releases))
    borne = corrupt_borne(everybody, p.corrupt, p.n_max, sums)
    if borne >= wanted:
        return ""
    needed = corrupt_needed(everybody, wanted, p.n_max, sums)
    more = f"larger sums bear more than {100 * borne / everybody:.2g} %"
    if _can_bear(p, needed):
        # With this many decimals, the share times n_max, rounded up, is `needed` again.
        digits = len(str(p.n_max))
        share = needed * 10**digits // p.n_max / 10**digits
        more = f"--max-corrupt {share:g} bears {100 * asked:g} % of all"
    return (
        f"--max-corrupt {asked:g} is of one sum, and {counted.who(plan)}s are drawn for it: with"
        f" {borne:,} of all {everybody:,} corrupt ({100 * borne / everybody:.2g} %), none of"
        f" {sums:,} sums has more than {p.corrupt:,}, but for a chance of 1 in"
        f" {round(1 / EXCEEDED):,}; {more}"
    )


def _can_bear(p: Parameters, corrupt: int) -> bool:
    """Return whether cohorts can be summed if `corrupt` clients in each are corrupt.

    Args:
        p: the parameters of the cohorts; `p.corrupt` is not used.
        corrupt: the number of corrupt clients in a cohort.
    """
    from fedtally.secagg.params import PPM
    from fedtally.secagg.proposal import propose

    try:
        propose(
            p.n_max,
            length=p.length,
            bits=p.bits,
            corrupt=corrupt,
            max_dropout=p.max_dropout_ppm / PPM,
            adversary=p.adversary,
            n_min=p.n_min,
        )
    except InvalidInputError:
        return False
    return True


def longer_list(plan: Plan, listed: int) -> str:
    """Return a warning if a list has more clients than its plan was made for; else "".

    The promises of the plan hold: they bound the number of corrupt clients on the whole list. But
    this number is a smaller share of a longer list.

    Args:
        plan: the plan, which names a list.
        listed: the number of clients on the list.
    """
    terms, whom = plan.summing.terms, counted.who(plan)
    if terms is None or listed <= plan.num_clients:
        return ""
    return (
        f"the list has {listed:,} {whom}s, and the plan is for {plan.num_clients:,}: still at most"
        f" {terms.corrupt:,} of the whole list ({amounts.percent(terms.corrupt / listed)}) may be"
        " corrupt; a plan with a larger --max-corrupt bears more"
    )


def proof_fields(plan: Plan) -> dict[str, Any]:
    """Return the JSON fields on proofs of reports to two servers.

    "proofs" says whether reports have proofs. "reason" says why reports have no proofs; it is "" if
    they have proofs.
    """
    has_proofs = plan.report_proof is not None
    return {"proofs": has_proofs, "reason": "" if has_proofs else why_no_proofs(plan)}


def why_no_proofs(plan: Plan) -> str:
    """Return in words why reports to two servers have no proofs, or which option adds them."""
    return plan.why_no_proofs or "--validity proofs asks for them"
