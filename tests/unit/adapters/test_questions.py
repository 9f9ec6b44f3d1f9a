# SPDX-License-Identifier: Apache-2.0
"""An answer is one line, of bounded length whatever a host says."""

import io
import json

from mkv_ascend.adapters.questions import MARK, answer


def test_words_of_any_length_are_one_short_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"count": 2000000}'))
    answer(lambda question: {"problem": "x\n" + "y" * question["count"]})
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith(MARK)]
    problem = json.loads(line.removeprefix(MARK))["problem"]
    assert problem.startswith("x\ny")
    assert len(problem) < 10_000
