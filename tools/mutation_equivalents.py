# SPDX-License-Identifier: Apache-2.0
"""Mutants that do the same as the original, each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {}
"""Module and function, and the changed lines as ``tools/mutation.py --diffs`` prints them -> why
no test can notice the change."""
