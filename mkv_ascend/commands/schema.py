# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend schema``: the JSON schema of ``--additional-config``."""

from __future__ import annotations

import argparse
import json

from mkv_ascend.config import options_schema

HELP = "print the JSON schema of --additional-config, for editors and checks of files"

DESCRIPTION = """\
Prints what options there are under the key mkv_ascend of --additional-config, with their types,
limits and defaults, as a JSON schema (draft 2020-12). What it takes, a server takes, but for
patterns of attention.layers, which only a server reads.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION


def run(_: argparse.Namespace) -> int:
    """Print it."""
    print(json.dumps(options_schema(), indent=2))
    return 0
