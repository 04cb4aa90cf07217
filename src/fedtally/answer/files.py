"""Results in files: saved answers, exported tables, and the memory that a table takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedtally import domain as domains
from fedtally.answer import provenance as told
from fedtally.answer.cells import as_text
from fedtally.answer.evaluation import Evaluation, NameEvaluation
from fedtally.base import archive, validate
from fedtally.errors import InvalidInputError, MemoryLimitError, UnreadableFileError, opt, reason
from fedtally.plan import Plan
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.found import FoundFit
from fedtally.sketch import CountSketch
from fedtally.sketch.count_sketch import checked_number, noise_mark
from fedtally.sketch.hashing import SEED_BYTES

if TYPE_CHECKING:
    from fedtally.answer.result import Result

# Candidates from which decoding takes long enough for a file to keep the fit of joint recovery.
_SLOW = 1 << 20
_FIT_FIELDS = ("most", "selected", "threshold", "draws", "kappa", "largest_error")
_FIT_ARRAYS = {
    "positions": np.int64,
    "values": np.float64,
    "shrinkage": np.float64,
    "residual": np.float64,
}
# Of a table of all candidates: estimate, order, label and the row that is being written.
_BYTES_PER_ROW = 112


def save(result: Result, path: str | os.PathLike[str]) -> None:
    """Write sums, plan and candidates of a result to one file, whole or not at all.

    Estimates are not written: they are decoded from the sums again, in any way the reader asks for.
    If that takes long, and joint recovery has decoded the sums, the file also keeps what it found.
    Names of an open domain that were read are kept, too.
    """
    kept, fitted = _fit_parts(result)
    meta = {
        "plan": result.plan.to_dict(),
        "domain": result.domain.describe(),
        "rounds": [sketch.round for sketch in result.sketches],
        "num_clients": [sketch.num_clients for sketch in result.sketches],
        "num_silos": [sketch.num_silos for sketch in result.sketches],
        "silos": result.num_silos,
        "noise": [sketch.noise for sketch in result.sketches],
        "recovery": result.recovery,
        "objective": result.objective,
        "confidence": result.confidence,
        "intervals": result.interval_kind,
        "command": result.command,
        "warnings": list(result._warnings),
        "missing": result.missing,
        "secure_sum": result.secure_sum,
        "sizing": result.sizing,
        "timings": result.timings,
        "attendance": result.attendance,
        "draw": result.draw,
        "columns": result.columns,
        "words": list(result.words),
        "names": None if result.known_names is None else list(result.known_names),
        "evaluation": result.evaluation_fields,
        "fit": kept,
    }
    arrays = {f"domain_{name}": values for name, values in result.domain.arrays().items()}
    # True counts are left out: a file may go to people that must not see them.
    archive.write(
        path,
        told.SCHEMA,
        meta,
        {
            "counters": np.stack([s.counters for s in result.sketches]),
            **_spelled(result.sketches),
            **arrays,
            **fitted,
        },
        private=True,
    )


def load(kind: type[Result], path: str | os.PathLike[str]) -> Result:
    """Read a result of a kind that `save` wrote.

    Raises:
        UnreadableFileError: the file is missing, damaged, or of another kind.
    """
    _, meta, arrays = archive.read(path, told.SCHEMA, _limits)
    try:
        plan = Plan.from_dict(meta["plan"])
        parts = {
            name.removeprefix("domain_"): values
            for name, values in arrays.items()
            if name.startswith("domain_")
        }
        sketches = _sketches(plan, meta, arrays["counters"], arrays.get("spelled"))
        command = meta["command"]
        if not isinstance(command, str):
            raise InvalidInputError(f"command must be text, got {command!r}")
        result = kind(
            plan,
            domains.load(meta["domain"], parts),
            sketches,
            decoding=Decoding(
                meta["recovery"], meta["objective"], meta["confidence"], meta["intervals"]
            ),
            warnings=told.texts("warnings", meta["warnings"]),
            missing=meta["missing"],
            secure_sum=told.secure_sum(meta["secure_sum"], plan),
            sizing=told.sizing(meta["sizing"]),
            timings=meta["timings"],
            attendance=meta["attendance"],
            num_silos=meta["silos"],
            draw=told.draw(meta["draw"]),
            columns=meta["columns"],
            words=meta["words"],
            known_names=_read_names(meta["names"]),
            known_fit=_read_fit(meta["fit"], arrays),
            command=command,
        )
        if meta["evaluation"] is not None:
            kept = NameEvaluation if plan.is_open else Evaluation
            result.evaluation = kept(**meta["evaluation"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # a file is data of strangers: anything in it that a constructor refuses is damage
        raise UnreadableFileError(f"{os.fspath(path)} is damaged{reason(error)}") from error
    return result


def _limits(meta: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return the most bytes of each array of a saved result: `archive.Limits`."""
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


def _fit_parts(result: Result) -> tuple[dict[str, Any] | None, dict[str, npt.NDArray[Any]]]:
    """Return what joint recovery found, for the header of a file and as arrays of it."""
    found = result.known_fit
    if found is None or result.domain.size < _SLOW:
        return None, {}
    fields = {name: getattr(found, name) for name in _FIT_FIELDS}
    return fields, {f"fit_{name}": getattr(found, name) for name in _FIT_ARRAYS}


def _read_fit(
    fields: Mapping[str, Any] | None, arrays: Mapping[str, npt.NDArray[Any]]
) -> FoundFit | None:
    """Return what joint recovery found, as a file has it; None if the file has nothing of it."""
    if fields is None:
        return None
    parts = {name: arrays[f"fit_{name}"] for name in _FIT_ARRAYS}
    if any(values.dtype != _FIT_ARRAYS[name] for name, values in parts.items()):
        raise InvalidInputError("arrays of a fit must be integers and floating-point numbers")
    kappa, largest = fields["kappa"], fields["largest_error"]
    return FoundFit(
        validate.integer(1, most=fields["most"]),
        validate.real(selected=fields["selected"]),
        validate.real(threshold=fields["threshold"]),
        parts["positions"],
        parts["values"],
        parts["shrinkage"],
        parts["residual"],
        fields["draws"],
        None if kappa is None else (validate.real(kappa=kappa[0]), str(kappa[1])),
        None if largest is None else validate.real(largest_error=largest),
    )


def _read_names(names: object) -> list[str] | None:
    """Return the names of an open domain, as a file has them; None if the file has none of them."""
    return None if names is None else told.texts("names of an open domain", names)


def _spelled(sketches: Sequence[CountSketch]) -> dict[str, npt.NDArray[np.int64]]:
    """Return the counters that spell names, as an array of a file; none if no domain is open."""
    if sketches[0].spec.spelling is None:
        return {}
    return {"spelled": np.stack([sketch.vector[sketch.counters.size :] for sketch in sketches])}


def _sketches(
    plan: Plan,
    meta: Mapping[str, Any],
    counters: npt.NDArray[Any],
    spelled: npt.NDArray[Any] | None,
) -> list[CountSketch]:
    """Return the landed sums of a file, checked against its plan."""
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


def check_export_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInputError unless `path` ends like a table that `Result.export` can write.

    Commands call it before the work, and not when the answer is there.

    >>> check_export_path("estimates.csv")
    """
    if not os.fspath(path).endswith((".csv", ".parquet")):
        raise InvalidInputError(f"output must end in .csv or .parquet, got {os.fspath(path)}")


def write_table(table: Any, path: str | os.PathLike[str]) -> int:
    """Write a `pyarrow.Table` to a .csv or .parquet file, whole or not at all.

    Returns:
        How many cells of a .csv file are written so that no spreadsheet runs them (`as_text`).
    """
    changed = 0
    with archive.replacing(path) as temporary:
        if os.fspath(path).endswith(".csv"):
            import pyarrow.csv

            table, changed = as_text(table)
            pyarrow.csv.write_csv(table, temporary)
        else:
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, temporary)
    return changed


def check_table_fits(size: int, memory: int | None, held: int = 0, lighter: str = "") -> None:
    """Raise MemoryLimitError unless a table of `size` candidates fits into memory.

    Args:
        size: the number of candidates.
        memory: the bytes that it may take; None: half of the machine's memory.
        held: the bytes of the messages that decode it, which count, too.
        lighter: the name of a decoder that sends none.

    >>> check_table_fits(1000, memory=2**20)
    """
    limit = physical_memory() // 2 if memory is None else memory
    needed = size * _BYTES_PER_ROW + held
    if needed > limit:
        messages = " with the messages that decode it" if held else ""
        way = f"; decode it by {lighter} recovery ({opt.recovery(lighter)}), which sends none"
        raise MemoryLimitError(
            f"a table of {size:,} candidates{messages} needs about {_shown(needed)}, more than the"
            f" {_shown(limit)} allowed; ask for the top items or named ones, or raise the limit"
            f" ({opt.memory}){way if held else ''}"
        )


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"


def physical_memory() -> int:
    """Return the bytes of memory of this machine; 4 GiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # no sysconf, or not these names of it
        return 4 << 30
