"""Save and load results: their sums, plan and candidates, and fits that are slow to repeat."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import domain as domains
from fedtally.answer import provenance
from fedtally.answer.evaluation import Evaluation, NameEvaluation
from fedtally.base import archive, validate
from fedtally.errors import InvalidInputError, UnreadableFileError, reason
from fedtally.plan import Plan
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.found import FoundFit
from fedtally.sketch import CountSketch
from fedtally.sketch.count_sketch import checked_number, noise_mark
from fedtally.sketch.hashing import SEED_BYTES

# From this number of candidates on, decoding is slow. Then a file also has the fit of joint
# recovery, so that a reader need not repeat it.
_SLOW = 1 << 20
_FIT_FIELDS = ("most", "selected", "threshold", "draws", "kappa", "largest_error")
_FIT_ARRAYS = {
    "positions": np.int64,
    "values": np.float64,
    "shrinkage": np.float64,
    "residual": np.float64,
}


class SavedResult(NamedTuple):
    """The parts of a result that its file contains.

    Attributes:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums.
        decoding: the settings with which the sums were decoded.
        fit: the fit that joint recovery found; None: no fit was made, or the file has no fit.
        evaluation: the errors compared with the truth; None: the result was not evaluated.
        account: how the answer was made, as keyword arguments of `Result`.
    """

    plan: Plan
    domain: domains.Domain
    sketches: Sequence[CountSketch]
    decoding: Decoding
    fit: FoundFit | None
    evaluation: Evaluation | NameEvaluation | None
    account: Mapping[str, Any]


def save(result: SavedResult, path: str | os.PathLike[str]) -> None:
    """Write sums, plan and candidates of a result to one file, whole or not at all.

    There is no list of estimates: whoever reads the file decodes the sums again, with any settings.
    If there are at least 2^20 candidates and joint recovery has decoded the sums, its fit is
    written, which has estimates of the items that it found.
    In an open domain, the names that were read are written. The errors of an evaluation are written
    if there was one.
    """
    kept, fitted = _fit_parts(result)
    account = dict(result.account)
    num_silos, names = account.pop("num_silos"), account.pop("known_names")
    meta = {
        "plan": result.plan.to_dict(),
        "domain": result.domain.describe(),
        "rounds": [sketch.round for sketch in result.sketches],
        "num_clients": [sketch.num_clients for sketch in result.sketches],
        "num_silos": [sketch.num_silos for sketch in result.sketches],
        "silos": num_silos,
        "noise": [sketch.noise for sketch in result.sketches],
        **asdict(result.decoding),
        **account,
        "names": names,
        "evaluation": None if result.evaluation is None else result.evaluation._asdict(),
        "fit": kept,
    }
    arrays = {f"domain_{name}": values for name, values in result.domain.arrays().items()}
    # Do not write true counts: people who must not see them may get the file.
    archive.write(
        path,
        provenance.SCHEMA,
        meta,
        {
            "counters": np.stack([s.counters for s in result.sketches]),
            **_spelled(result.sketches),
            **arrays,
            **fitted,
        },
        private=True,
    )


@contextmanager
def refused_as_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors within the `with` block into the error that the file `path` is damaged.

    A stranger may have written the file, so its values may cause any error.

    Raises:
        UnreadableFileError: the block raised an arithmetic, attribute, lookup, type or value error.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnreadableFileError(f"{os.fspath(path)} is damaged{reason(error)}") from error


def load(path: str | os.PathLike[str]) -> SavedResult:
    """Return the contents of a file that `save` wrote.

    Raises:
        UnreadableFileError: the file is missing, damaged, or has another format.
    """
    _, meta, arrays = archive.read(path, provenance.SCHEMA, _limits)
    with refused_as_damage(path):
        plan = Plan.from_dict(meta["plan"])
        parts = {
            name.removeprefix("domain_"): values
            for name, values in arrays.items()
            if name.startswith("domain_")
        }
        sketches = _sketches(plan, meta, arrays["counters"], arrays.get("spelled"))
        account = _read_account(meta, plan)
        evaluation = None
        if meta["evaluation"] is not None:
            kind = NameEvaluation if plan.is_open else Evaluation
            evaluation = kind(**meta["evaluation"])
        return SavedResult(
            plan,
            domains.load(meta["domain"], parts),
            sketches,
            Decoding(**{field.name: meta[field.name] for field in fields(Decoding)}),
            _read_fit(meta["fit"], arrays),
            evaluation,
            account,
        )


def _read_account(meta: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return what a file says about how its answer was made, as keywords of `Result`.

    All entries are checked here, except attendance and silos, which `Result` checks.

    Args:
        meta: the header of the file.
        plan: the plan in the file.

    Raises:
        InvalidInputError: an entry has the wrong type, or does not fit the plan.
    """
    command, names = meta["command"], meta["names"]
    if not isinstance(command, str):
        raise InvalidInputError(f"command must be text, got {command!r}")
    if names is not None:
        names = provenance.texts("names of an open domain", names)
    return {
        "command": command,
        "warnings": provenance.texts("warnings", meta["warnings"]),
        "missing": validate.integer(0, missing=meta["missing"]),
        "secure_sum": provenance.secure_sum(meta["secure_sum"], plan),
        "sizing": provenance.sizing(meta["sizing"]),
        "timings": provenance.timings(meta["timings"]),
        "attendance": meta["attendance"],
        "num_silos": meta["silos"],
        "draw": provenance.draw(meta["draw"]),
        "ended": provenance.ended(meta.get("ended"), plan),  # missing without an early end
        "columns": provenance.columns(meta["columns"]),
        "words": provenance.texts("words", meta["words"]),
        "known_names": names,
        "round_labels": _round_labels(meta["round_labels"], plan),
    }


def _round_labels(labels: Any, plan: Plan) -> list[str] | None:
    """Return the labels of the plan's rounds in a file; None if it has none.

    Args:
        labels: the value in the file's header.
        plan: the plan in the file.

    Raises:
        InvalidInputError: the value is no list of texts, the number of labels is not the plan's
            number of rounds, or two labels are equal.
    """
    if labels is None:
        return None
    told = provenance.texts("labels of rounds", labels)
    if len(told) != plan.num_rounds or len(set(told)) != len(told):
        raise InvalidInputError(
            f"labels of rounds must be {plan.num_rounds} different ones, got {len(told)}"
        )
    return told


def _limits(meta: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return by name the largest size of each array of a saved result, in bytes; None: no bound.

    `archive` refuses larger arrays before it reads them. So a small file cannot fill the memory.

    Args:
        meta: the header of the file.
        sizes: the sizes that the file states for its arrays; not used.
    """
    plan = Plan.from_dict(meta["plan"])
    fits: dict[str, int | None] = {f"fit_{name}": None for name in _FIT_ARRAYS}
    return fits | {
        "counters": 8 * plan.num_rounds * plan.rows * plan.width,
        "spelled": 8 * plan.num_rounds * plan.spec.vector_length,
        "domain_values": 8 * plan.domain_size,
        "domain_offsets": 8 * (plan.domain_size + 1),
        "domain_utf8": None,
        "domain_seed": SEED_BYTES,
    }


def _fit_parts(result: SavedResult) -> tuple[dict[str, Any] | None, dict[str, npt.NDArray[Any]]]:
    """Return the fit of joint recovery: entries of a file's header, and arrays by name.

    They are None and {} if nothing was fitted, or the candidates are so few that a new fit is fast.
    """
    found = result.fit
    if found is None or result.domain.size < _SLOW:
        return None, {}
    return {name: getattr(found, name) for name in _FIT_FIELDS}, {
        f"fit_{name}": getattr(found, name) for name in _FIT_ARRAYS
    }


def _read_fit(
    fit: Mapping[str, Any] | None, arrays: Mapping[str, npt.NDArray[Any]]
) -> FoundFit | None:
    """Return the fit of joint recovery in a file; None if the file has none.

    Args:
        fit: the entry "fit" of the file's header; None: no fit.
        arrays: all arrays of the file, by name.

    Raises:
        InvalidInputError: an array has the wrong dtype, or a number is not finite or out of range.
    """
    if fit is None:
        return None
    parts = {name: arrays[f"fit_{name}"] for name in _FIT_ARRAYS}
    if any(values.dtype != _FIT_ARRAYS[name] for name, values in parts.items()):
        raise InvalidInputError("arrays of a fit must be integers and floating-point numbers")
    kappa, largest = fit["kappa"], fit["largest_error"]
    return FoundFit(
        validate.integer(1, most=fit["most"]),
        validate.real(selected=fit["selected"]),
        validate.real(threshold=fit["threshold"]),
        parts["positions"],
        parts["values"],
        parts["shrinkage"],
        parts["residual"],
        fit["draws"],
        None if kappa is None else (validate.real(kappa=kappa[0]), str(kappa[1])),
        None if largest is None else validate.real(largest_error=largest),
    )


def _spelled(sketches: Sequence[CountSketch]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the counters that spell names, as an array of a file: {} if the domain is not open.

    Otherwise the dict has "spelled", int64 [sums, counters]: a row for each sum.
    """
    if sketches[0].spec.spelling is None:
        return {}
    return {"spelled": np.stack([sketch.vector[sketch.counters.size :] for sketch in sketches])}


def _sketches(
    plan: Plan,
    meta: Mapping[str, Any],
    counters: npt.NDArray[Any],
    spelled: npt.NDArray[Any] | None,
) -> list[CountSketch]:
    """Return the landed sums in a file.

    Args:
        plan: the plan in the file.
        meta: the header of the file.
        counters: the counters of the sums, [sums, rows, width].
        spelled: the counters that spell names, [sums, counters]; None: the file has none.

    Raises:
        InvalidInputError: shapes or dtypes do not fit the plan, or numbers are out of range.
    """
    rounds, clients, marks = meta["rounds"], meta["num_clients"], meta["noise"]
    silos = meta["num_silos"]
    if (
        counters.dtype != np.int64
        or counters.shape != (len(rounds), plan.rows, plan.width)
        or not len(clients) == len(silos) == len(marks) == len(rounds)
    ):
        raise InvalidInputError(f"counters of shape {counters.shape} do not fit the plan")
    rest = plan.spec.vector_length - plan.rows * plan.width
    spelled = np.zeros((len(rounds), 0), np.int64) if spelled is None else spelled
    if spelled.dtype != np.int64 or spelled.shape != (len(rounds), rest):
        raise InvalidInputError(f"spelled counters of shape {spelled.shape} do not fit the plan")
    sketches = []
    for round, number, num_silos, mark, values, letters in zip(
        rounds, clients, silos, marks, counters, spelled, strict=True
    ):
        sketch = CountSketch(plan.spec, round)
        sketch.noise = noise_mark(mark)
        sketch.num_silos = validate.integer(0, num_silos=num_silos)
        sketch.num_clients = checked_number(number, sketch)
        sketch.vector = np.concatenate([values.reshape(-1), letters])
        sketches.append(sketch)
    return sketches
