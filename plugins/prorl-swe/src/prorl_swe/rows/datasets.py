"""The data sets' own row forms, each by the fields that tell it.

Where the forms are from: SWE-bench, SWE-Gym and SWE-rebench from their data sets' columns and their harnesses
(``swebench.types``; SWE-Gym's fork; SWE-rebench's fork, with ``install_config``); SWE-smith from ``swesmith.profiles``
and its data set's columns; R2E-Gym from ``r2egym.agenthub.runtime.docker``; the wrapping from SkyRL's preprocessing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from prorl.api import TaskFault
from prorl_swe.rows.allowed import allowed
from prorl_swe.rows.fields import read_table
from prorl_swe.rows.images import DEFAULT_IMAGE, Images
from prorl_swe.rows.instance import Instance, Kind
from prorl_swe.rows.published import read_pypi, read_swe_bench, read_swe_gym, read_swe_rebench, read_swe_smith
from prorl_swe.rows.r2e import read_r2e_gym
from prorl_swe.rows.suites import SWE_GYM

KindSetting = Literal["auto"] | Kind
# What a row around a row may say of it.
OVERRIDES = ("source", "requirements", "test_command", "test_cmd")


def read_row(
    row: dict[str, Any],
    kind: KindSetting = "auto",
    images: Images = DEFAULT_IMAGE,
    sources: Sequence[str] | None = None,
) -> Instance:
    """The task of a row. ``kind="auto"`` goes by the fields; ``images`` says where images are, ``sources`` what a row
    may name as its ``source`` (``None``: anything). Blocks, when there are ``sources``.

    Raises ``TaskFault`` (``bad_row``) that names the field, or (``source_refused``), and ``GraderFault`` (``no_tests``)
    for a row without tests.
    """
    if "instance" in row and "FAIL_TO_PASS" not in row:
        row, source = unwrap(row)
        kind = source if kind == "auto" and source is not None else kind
    found = detect(row) if kind == "auto" else kind
    if found not in READERS:
        raise TaskFault(f"{found!r:.80} is not a kind of row; they are {', '.join(get_args(Kind))}", code="bad_row")
    try:
        instance = READERS[found](row, images)
    except TaskFault as fault:
        if kind == "auto":  # the field that would have told another kind may be the one that is missing
            raise TaskFault(f"{fault} (by its fields a row of {found})", code=fault.code) from fault
        raise
    if isinstance(row.get("source"), dict):  # else it is where `images` says, which is no word of the row's
        instance = msgspec.structs.replace(instance, source=allowed(instance.source, sources))
    return instance


def unwrap(row: dict[str, Any]) -> tuple[dict[str, Any], Kind | None]:
    """SkyRL keeps a row of SWE-Gym or SWE-bench in ``instance``, beside a prompt; ``data_source`` says which it is."""
    inner = read_table("instance", row["instance"])
    overrides = {field: row[field] for field in OVERRIDES if row.get(field) is not None}
    data_source = str(row.get("data_source") or "").lower()
    known: tuple[Kind, ...] = ("swe-gym", "swe-rebench", "swe-smith", "r2e-gym", "swe-bench")
    return {**inner, **overrides}, next((kind for kind in known if kind in data_source), None)


def detect(row: dict[str, Any]) -> Kind:
    for kind, fields in FIELDS.items():
        if all(row.get(field) is not None for field in fields):
            if kind == "swe-bench" and is_swe_gym(row):
                return "swe-gym"
            return kind
    known = "; ".join(f"{kind}: {', '.join(fields)}" for kind, fields in FIELDS.items())
    raise TaskFault(
        f"not a row of a known form ({known}); it has {', '.join(sorted(map(str, row))) or 'nothing'}"[:2000],
        code="bad_row",
    )


def is_swe_gym(row: dict[str, Any]) -> bool:
    """SWE-Gym has SWE-bench's fields but for the commit of the environment, and eleven repositories of its own."""
    return "environment_setup_commit" not in row and str(row.get("repo")).lower() in SWE_GYM


READERS: dict[str, Callable[[dict[str, Any], Images], Instance]] = {
    "pypi": read_pypi,
    "swe-bench": read_swe_bench,
    "swe-gym": read_swe_gym,
    "swe-rebench": read_swe_rebench,
    "swe-smith": read_swe_smith,
    "r2e-gym": read_r2e_gym,
}
# In this order: the more telling first.
FIELDS: dict[Kind, tuple[str, ...]] = {
    "pypi": ("sdist", "sdist_sha256", "FAIL_TO_PASS"),
    "r2e-gym": ("docker_image", "expected_output_json", "execution_result_content"),
    "swe-rebench": ("instance_id", "base_commit", "install_config", "FAIL_TO_PASS"),
    "swe-bench": ("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS"),
    "swe-smith": ("instance_id", "repo", "image_name", "patch", "FAIL_TO_PASS"),
}
