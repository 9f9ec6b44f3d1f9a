# SPDX-License-Identifier: Apache-2.0
"""Check commit messages: `area: what` in at most 72 characters, and a reason for what is shipped.

    .venv/bin/python tools/commit_messages.py            of all commits since there is a form
    .venv/bin/python tools/commit_messages.py FILE       the message in FILE, of what is staged

A commit that touches a package must have a body: why, not what. pre-commit runs the second form.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SUBJECT = 72
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: \S")
FREE_UNTIL = "37ae25c0"
"""The last commit whose subject could have any form."""
PACKAGES = ("mkv_ascend/", "emulated_npu/src/", "emulated_npu/csrc/", "csrc/")
TRAILERS = ("Signed-off-by:", "Co-authored-by:")
SCISSORS = "# ------------------------ >8 ------------------------"


def problems(message: str, paths: Sequence[str]) -> list[str]:
    """What is wrong with a message of a commit that touches ``paths``; empty when nothing is."""
    lines = message.partition(SCISSORS)[0].splitlines()
    lines = [line.rstrip() for line in lines if not line.startswith("#")]
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return ["the message is empty"]
    found = []
    if len(lines[0]) > LONGEST_SUBJECT:
        found.append(f"the subject has {len(lines[0])} characters, at most {LONGEST_SUBJECT} fit")
    if not SUBJECT.match(lines[0]):
        found.append("the subject is not of the form `area: what`, as in `v2/graphs: pad rows`")
    if len(lines) > 1 and lines[1]:
        found.append("the second line is not empty: it separates the subject from the reason")
    touched = [path for path in paths if path.startswith(PACKAGES)]
    reason = [line for line in lines[1:] if line and not line.startswith(TRAILERS)]
    if touched and not reason:
        found.append(f"no reason below the subject, and it touches {touched[0]}: say why")
    return found


def git(*arguments: str) -> str:
    """What git prints, empty where it fails: a source archive has no history."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def commits_to_check() -> list[str]:
    """Commits since subjects have a form, merges left out; none in a clone without them."""
    return git("rev-list", "--no-merges", f"{FREE_UNTIL}..HEAD").split()


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong, one line each; returns 1 if anything is."""
    if arguments:
        message = Path(arguments[0]).read_text(encoding="utf-8")
        staged = git("diff", "--cached", "--name-only").splitlines()
        found = problems(message, staged)
    else:
        found = []
        for commit in commits_to_check():
            paths = git("diff-tree", "--no-commit-id", "--name-only", "-r", commit).splitlines()
            message = git("log", "-1", "--format=%B", commit)
            found += [f"commit {commit[:9]}: {text}" for text in problems(message, paths)]
    for text in found:
        print(text, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
