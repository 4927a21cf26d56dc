"""Results of earlier runs, read from their JSON files: several runs of one case become one."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from benchmarks.case import Case, Settings
from benchmarks.checks import Check
from benchmarks.report import SCHEMA
from benchmarks.runner import OK, CaseResult, ContenderResult
from benchmarks.timing import Timing

# What must be the same for times to stand side by side.
_SAME = ("device_name", "threads", "dtype", "versions", "native_instruction_set")


def read(
    paths: Sequence[Path], name: str, build: Callable[[Settings], Case], settings: Settings
) -> Tuple[List[Settings], List[CaseResult], Dict[str, Any]]:
    """The tables of the case ``name`` in ``paths``: their settings and results, and the first run's environment.

    Of a table that is there twice, the last counts.

    Raises:
        ValueError: a file that is no record of this case, or one of another machine or other versions; names the file.
    """
    environment: Dict[str, Any] = {}
    found: Dict[Settings, CaseResult] = {}
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            tables = [table for table in document["cases"] if table["name"] == name]
            here = document["environment"]
            if document["schema"] != SCHEMA or not tables:
                raise KeyError(name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no record of the case {name}: {error}") from None
        environment = environment or here
        other = [key for key in _SAME if here.get(key) != environment.get(key)]
        if other:
            raise ValueError(
                f"{path} has another {other[0]} than {paths[0]}: {here.get(other[0])}, not {environment.get(other[0])}"
            )
        for table in tables:
            known = {field.name for field in fields(Settings)}
            point = replace(settings, **{key: value for key, value in table["parameters"].items() if key in known})
            found.pop(point, None)
            found[point] = _result(build(point), table)
    return list(found), list(found.values()), environment


def _result(case: Case, table: Dict[str, Any]) -> CaseResult:
    contenders = {contender.name: contender for contender in case.contenders}
    rows = [_row(contenders[row["name"]], row) for row in table["results"] if row["name"] in contenders]
    return CaseResult(case, rows, table["measured"])


def _row(contender: Any, row: Dict[str, Any]) -> ContenderResult:
    check, timing = row["check"], row["time"]
    return ContenderResult(
        contender,
        row["status"],
        row["reason"],
        None if check is None else Check(check["passed"], check["against"], check["detail"], check["errors"]),
        None
        if timing is None or row["status"] != OK
        else Timing(
            timing["median_s"],
            timing["lower_quartile_s"],
            timing["upper_quartile_s"],
            timing["rounds"],
            timing["calls_per_round"],
            timing["faults_per_call"],
            timing["system_share"],
        ),
        row["ratios"],
        row["copy_share"],
        row["peak_bytes"],
        row["resident_peak_bytes"],
        row["compile_s"],
        row.get("phases", {}),
    )
