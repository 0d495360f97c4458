"""How the tests of a repository are run where its row does not say.

From SWE-bench's constants (``MAP_REPO_VERSION_TO_SPECS``, before its version 5) and those of SWE-Gym's fork: nearly all
run pytest, and options that only shape the output are left out, for a reporter of ours takes the outcomes. What stays
is what changes which tests there are or how they run, and the reader for SWE-bench's log, which also says how its
expected names are cut (:mod:`prorl_swe.grading.logs`).
"""

from __future__ import annotations

import msgspec

from prorl_swe.rows.instance import Runner


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A shell command without the tests' names, the runner for it, and the reader of its log."""

    command: str = "python -m pytest -rA"
    runner: Runner = "pytest"
    log_format: str = "pytest"


PYTEST = Suite()
OPTIONS = Suite(log_format="pytest-options")
WHOLE_NAMES = Suite(log_format="pytest-v2")
# These set up pytest-xdist in their own configuration; one process is what a reporter can follow.
ONE_PROCESS = Suite(command="python -m pytest -n0 -rA")

# Keyed in lower case, for data sets do not agree on the case of names.
SWE_BENCH = {
    "astropy/astropy": WHOLE_NAMES,
    "django/django": Suite(
        command="./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        runner="unittest",
        log_format="django",
    ),
    "marshmallow-code/marshmallow": PYTEST,
    "matplotlib/matplotlib": Suite(log_format="matplotlib"),
    "mwaskom/seaborn": Suite(log_format="seaborn"),
    "pallets/flask": PYTEST,
    "psf/requests": OPTIONS,
    "pvlib/pvlib-python": PYTEST,
    "pydata/xarray": PYTEST,
    "pydicom/pydicom": OPTIONS,
    "pylint-dev/astroid": PYTEST,
    "pylint-dev/pylint": OPTIONS,
    "pytest-dev/pytest": PYTEST,
    "pyvista/pyvista": PYTEST,
    "scikit-learn/scikit-learn": WHOLE_NAMES,
    # SWE-bench runs tox there, in the current environment: pytest it is.
    "sphinx-doc/sphinx": WHOLE_NAMES,
    "sqlfluff/sqlfluff": PYTEST,
    "sympy/sympy": Suite(
        command="PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
        runner="log",
        log_format="sympy",
    ),
}
SWE_GYM = {
    "bokeh/bokeh": ONE_PROCESS,
    "conan-io/conan": ONE_PROCESS,
    "dask/dask": ONE_PROCESS,
    "facebookresearch/hydra": PYTEST,
    "getmoto/moto": ONE_PROCESS,
    "iterative/dvc": PYTEST,
    "modin-project/modin": ONE_PROCESS,
    "pandas-dev/pandas": PYTEST,
    "project-monai/monai": PYTEST,
    "pydantic/pydantic": PYTEST,
    "python/mypy": ONE_PROCESS,
}
ENVIRONMENTS = {
    # Django's old versions read their own source files in the locale's encoding.
    "django/django": "export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 PYTHONIOENCODING=utf8 LANGUAGE=en_US:en",
}


def suite_of(repo: str) -> Suite:
    name = repo.lower()
    return SWE_BENCH.get(name) or SWE_GYM.get(name) or PYTEST
