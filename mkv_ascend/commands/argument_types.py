# SPDX-License-Identifier: Apache-2.0
"""Types of command-line options that several commands have."""

from __future__ import annotations

import argparse

from mkv_ascend import envs


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: it is none; with what is allowed.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 1 on")
    return int(text)


def memory_size(text: str) -> int:
    """Bytes of a size such as ``64GiB``.

    Raises:
        argparse.ArgumentTypeError: it cannot be read; with what is allowed.
    """
    try:
        return envs.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
