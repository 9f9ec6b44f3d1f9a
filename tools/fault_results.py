# SPDX-License-Identifier: Apache-2.0
"""What became of planted faults, kept between runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault import ADAPTERS, PACKAGE, Fault
from mutation_results import CAUGHT, SURVIVES, UNKNOWN

SAME = "does the same"
BROKEN = "breaks"
"""Nothing could be imported, or no test ran: that is no fault of meaning. Write it anew."""
PASSED, FAILED = 0, 1
"""pytest's exit status; others say that tests did not run."""
UNNAMED = re.compile(r"\b(SyntaxError|ImportError|ModuleNotFoundError|NameError)\b: .*")
NOTICED = re.compile(r"^E +(\S.*)", re.MULTILINE)
TEST = re.compile(r"^(?:FAILED|ERROR) tests/(.*?)(?: - .*)?$", re.MULTILINE)


def outcome_of(status: int, log: Path) -> tuple[str, str]:
    """What pytest's exit status means, and the line of its output that says why."""
    text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    if status == PASSED:
        return SURVIVES, ""
    if status < 0:
        return CAUGHT, "hangs, or ends the process"
    unnamed, noticed = UNNAMED.search(text), NOTICED.search(text)
    if status != FAILED or unnamed:
        return BROKEN, unnamed[0] if unnamed else f"pytest ended with {status}: see {log}"
    test = TEST.search(text)
    return CAUGHT, f"{test[1] if test else ''}: {noticed[1] if noticed else ''}"[:300]


@dataclass
class Results:
    """Verdicts by the name of a fault, and tests that pass without one, each by its digest."""

    path: Path
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    passing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of earlier runs."""
        kept = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return cls(path, kept.get("verdicts", {}), kept.get("passing", {}))

    def save(self) -> None:
        """Keep them for the next run."""
        kept = {"verdicts": self.verdicts, "passing": self.passing}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(kept, indent=2), encoding="utf-8")
        part.replace(self.path)

    def outcome(self, fault: Fault, root: Path) -> str:
        """What is known of the fault as it stands in ``root``."""
        if fault.same:
            return SAME
        kept = self.verdicts.get(fault.name)
        if kept is None or kept["digest"] != fault.digest(root):
            return UNKNOWN
        return kept["outcome"]

    def note(self, fault: Fault, root: Path, outcome: str, reason: str) -> None:
        """Keep a verdict."""
        digest = fault.digest(root)
        self.verdicts[fault.name] = {"digest": digest, "outcome": outcome, "reason": reason}
        self.save()

    @staticmethod
    def digest_of_test(root: Path, test: str) -> str:
        """Changes with the test's file, and with the package."""
        digest = hashlib.sha256((root / test.partition("::")[0]).read_bytes())
        for path in sorted((root / "mkv_ascend").rglob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def to_dict(self, verdicts: Mapping[Fault, str]) -> list[dict[str, Any]]:
        """As JSON has it: a fault, its outcome, and by what it was noticed or why it cannot be."""
        return [
            {
                "name": fault.name,
                "file": fault.path,
                "wrong": fault.wrong,
                "outcome": outcome,
                "reason": fault.same or self.verdicts.get(fault.name, {}).get("reason", ""),
            }
            for fault, outcome in verdicts.items()
        ]


def table_of(verdicts: Mapping[Fault, str]) -> str:
    """A row for each folder of adapters and each other room, and one for all."""
    columns = (CAUGHT, SURVIVES, BROKEN, UNKNOWN, SAME)
    counts: dict[str, Counter[str]] = {}
    for fault, outcome in verdicts.items():
        folder = str(Path(fault.file).parent)
        in_adapters = fault.room == ADAPTERS and folder != "."
        for row in (folder if in_adapters else f"{PACKAGE}/{fault.room}", "all"):
            counts.setdefault(row, Counter())[outcome] += 1
    counts["all"] = counts.pop("all")
    titles = ("folder", *columns, "share caught")
    rows = [titles, ("---", *["---:"] * (len(titles) - 1))]
    for row, of in counts.items():
        judged = of[CAUGHT] + of[SURVIVES]
        share = f"{of[CAUGHT] / judged:.1%}" if judged else ""
        rows.append((row, *(str(of[column]) for column in columns), share))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
