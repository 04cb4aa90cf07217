"""Plain words for the names of fields in JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {  # field of a JSON document -> its name in words
    "num_rounds": "rounds",
    "num_clients": "clients",
    "num_clients_landed": "clients in the sums",
    "num_contributions": "contributions",
    "num_silos": "silos",
    "max_round_clients": "most clients of a round",
    "max_items": "most items of a client",
    "domain_size": "number of candidates",
    "domain_public": "candidates are public",
    "modulus_bits": "bits of a counter",
    "one_hot_bytes_per_client": "one-hot vector, bytes per client",
    "binary_bytes_per_client": "the item itself, bytes per client",
    "rounds_landed": "rounds in the answer",
    "missing_keys": "keys that are missing",
    "epsilon_replace_one": "epsilon if items are replaced",
    "epsilon_realised": "epsilon with those that took part",
    "rho": "zCDP: rho",
    "rho_delta": "zCDP: except with probability",
    "neighbours": "what changes (neighbours)",
    "noise_multiplier": "noise, in units of one client's effect",
    "noise_variance": "variance of the noise in a counter",
    "l2_sensitivity": "most effect of one client (l2 norm)",
    "participations": "most rounds of a client",
    "clip_norm": "norm that a client's sketch is clipped to",
    "honest_survivors": "clients whose noise is counted on",
    "silos_per_person": "most silos of a person",
    "method": "how it was proven",
    # fields of a target, of an evaluation and of the candidates
    "linf": "largest error",
    "l2": "l2 error",
    "failure_probability": "chance of more",
    "precision_at_k": "share of the top k that truly belong there",
    "recall_at_k": "share of the true top k that are found",
    "coverage": "share of the intervals that hold the truth",
    "strings": "frequent strings",
    "size": "number of candidates",
    "max_length": "most bytes of a name",
    "bits": "bits of a hash",
}


_NAMES_OF_SILOS = {  # instead of `_NAMES` where clients are silos: frequencies are shares of people
    "num_clients": "people in the sums",
    "people": "most people of a silo",
    "max_items": "most items of a person",
    "one_hot_bytes_per_client": "one-hot vector, bytes per silo",
    "binary_bytes_per_client": "the item itself, bytes per silo",
    "noise_multiplier": "noise, in units of one person's effect",
    "l2_sensitivity": "most effect of one person (l2 norm)",
    "participations": "most rounds of a person",
    "clip_norm": "norm that a person's sketch is clipped to",
    "honest_survivors": "silos whose noise is counted on",
}


def told(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, but leave out fields that tell a reader nothing.

    A field is left out if it is None. The field `people` is left out if it is 1: each client is
    then one person.

    >>> told({"rows": 7, "people": 1, "spelling": None})
    {'rows': 7}
    """
    return {
        name: value
        for name, value in fields.items()
        if value is not None and (name, value) != ("people", 1)
    }


def field_name(name: str, of_silos: bool = False) -> str:
    """Return a field's name in plain words.

    If no plain words are known for it, its underscores become spaces.

    Args:
        name: the name of a field of a JSON document.
        of_silos: whether clients are silos: some fields then count people, and have other names.

    >>> field_name("one_hot_bytes_per_client"), field_name("max_items")
    ('one-hot vector, bytes per client', 'most items of a client')
    """
    known = _NAMES | _NAMES_OF_SILOS if of_silos else _NAMES
    return known.get(name, name.replace("_", " "))
