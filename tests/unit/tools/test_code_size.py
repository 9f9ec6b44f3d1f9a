# SPDX-License-Identifier: Apache-2.0
"""Which lines count as code."""

from pathlib import Path

import code_size

SOURCE = '''# SPDX
"""A docstring
of two lines."""

from os import (
    path,
)


class Shape:
    """Another."""

    width: int = 3
    """Of an attribute."""

    def area(self) -> int:  # a comment
        text = """a text
        of two lines"""
        return len(text)
'''


def test_imports_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "shape.py").write_text(SOURCE)
    assert code_size.code_lines(tmp_path / "shape.py") == len(
        ("class", "width", "def", "text", "of two lines", "return")
    )
