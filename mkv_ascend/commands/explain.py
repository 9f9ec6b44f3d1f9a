# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain``: another name of ``mkv-ascend check --plan``."""

from __future__ import annotations

import argparse

from mkv_ascend.commands import check

HELP = "show the KV cache plan of a target and a draft (check --plan)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``mkv-ascend check``."""
    check.add_arguments(parser)
    parser.description = f"The same as mkv-ascend check --plan.\n\n{check.DESCRIPTION}"


def run(arguments: argparse.Namespace) -> int:
    """Print or write the plan; returns the exit status of ``mkv-ascend check``."""
    arguments.plan = True
    return check.run(arguments)
