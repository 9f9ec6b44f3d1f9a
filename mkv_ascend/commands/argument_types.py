# SPDX-License-Identifier: Apache-2.0
"""Types of command-line options that several commands have."""

from __future__ import annotations

import argparse
import re

BYTE_UNITS = {
    "": 1,
    "B": 1,
    **{unit: 1024 ** (place + 1) for place, unit in enumerate(("KIB", "MIB", "GIB"))},
    **{unit: 1000 ** (place + 1) for place, unit in enumerate(("KB", "MB", "GB"))},
}


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: it is none; with what is allowed.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 1 on")
    return int(text)


def memory_size(text: str) -> int:
    """Bytes of ``64GiB``, ``512 MiB`` or ``1048576``: at least 1, and exact.

    Raises:
        argparse.ArgumentTypeError: it cannot be read, or is a fraction; with what is allowed.
    """
    match = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", text.strip())
    unit = match and BYTE_UNITS.get(match.group(2).upper())
    if match is None or unit is None or int(match.group(1)) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes; allowed: a whole number over 0 with an optional "
            "unit B, KiB, MiB, GiB, KB, MB or GB"
        )
    return int(match.group(1)) * unit
