# SPDX-License-Identifier: Apache-2.0
"""pytest in forks of a process that has imported what tests and engines import."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

PYTEST = ("-q", "-x", "-p", "no:cacheprovider")


def import_what_tests_import() -> None:
    """Import it once, in this process and in one that engines are forked from."""
    import pytest

    from tests.support import programs
    from tests.support.program_starter import import_what_engines_import

    # Engines are forked from this one, which does as much meanwhile. They are, while what pytest
    # sees of the environment is what that process saw.
    os.environ["PYTEST_VERSION"] = pytest.__version__
    environment = dict(programs.with_repository(os.environ))
    programs._starter()
    import_what_engines_import()
    os.environ.clear()
    os.environ.update(environment)


def become_pytest(words: Sequence[str], log: Path) -> NoReturn:
    """Run pytest in this process, which is a fork, with its output in ``log``; then end."""
    import pytest

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 3
    try:
        status = int(pytest.main([*PYTEST, *words]))
    finally:
        sys.stdout.flush()
        os._exit(status)  # nothing that was registered for the parent's end
