# SPDX-License-Identifier: Apache-2.0
"""Commands on published configurations with one number after the other out of all bounds.

``python -m tests.support.hostile_numbers FOLDER NUMBER CONFIG...``, FOLDER being an empty one, runs
them in one process that has 4 GiB; it prints a line for each one that does not end as it should.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from mkv_ascend.child_process import limit

MEMORY, SECONDS = 4 << 30, 60
ADDED = ("num_labels", "mtp_num_hidden_layers", "num_nextn_predict_layers", "n_layer", "num_layers")
"""Numbers that files may have, beside those of the published ones."""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("check", "--", "vllm", "serve", "MODEL"),
    ("check", "--", "vllm", "serve", "MODEL", "--speculative-config", "MTP"),
    ("explain", "--no-build", "--no-vllm-grouping", "--model", "MODEL"),
    ("advise", "MODEL", "--method", "suffix", "--acceptance", "0.5"),
)
MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
Place = tuple[str, ...]


def places(config: Any, place: Place = ()) -> Iterator[Place]:
    """Where a configuration has whole numbers; of a list, as its first one."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from places(value, (*place, name))
    elif type(config) is int or (isinstance(config, list) and config and type(config[0]) is int):
        yield place


def changed(config: dict[str, Any], place: Place, number: int) -> dict[str, Any]:
    """The configuration with another number there."""
    found = copy.deepcopy(config)
    part = found
    for name in place[:-1]:
        part = part[name]
    old = part.get(place[-1])
    part[place[-1]] = [number, *old[1:]] if isinstance(old, list) else number
    return found


def run(words: tuple[str, ...]) -> tuple[Any, str]:
    """Exit status or what was raised, and all that was said."""
    from mkv_ascend import cli

    said = io.StringIO()
    signal.alarm(SECONDS)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status: Any = cli.main(list(words))
        except SystemExit as error:
            status = error.code
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
    signal.alarm(0)
    return status, said.getvalue()


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"more than {SECONDS} s")


def main() -> None:
    """Run the commands of all numbers."""
    limit(MEMORY, 3600)
    signal.signal(signal.SIGALRM, _too_long)
    from mkv_ascend.checks import config_defaults

    # As in the process that is asked for defaults, which is this one for once.
    config_defaults._hide_torch()
    import transformers  # noqa: F401

    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    count = 0
    for name in sys.argv[3:]:
        config = json.loads(Path(name, "config.json").read_text(encoding="utf-8"))
        for place in dict.fromkeys([*places(config), *((added,) for added in ADDED)]):
            hostile = json.dumps(changed(config, place, number))
            (folder / "config.json").write_text(hostile, encoding="utf-8")
            for command in COMMANDS:
                words = tuple({"MODEL": str(folder), "MTP": MTP}.get(x, x) for x in command)
                begin = time.process_time()
                status, said = run(words)
                count += 1
                if status not in (0, 1, 2) or not said or "Traceback" in said:
                    where = f"{Path(name).name}: {'.'.join(place)} is {number}: {command[0]}"
                    print(
                        f"{where}: {status} in {time.process_time() - begin:.1f} s: {said[-300:]}"
                    )
    print(f"commands: {count}")


if __name__ == "__main__":
    main()
