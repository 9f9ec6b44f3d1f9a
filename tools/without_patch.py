# SPDX-License-Identifier: Apache-2.0
"""Run the tests of records without what each replaces, and see them fail.

    .venv-0.30/bin/python tools/without_patch.py "caches from a plan" "window bound"
    .venv-0.30/bin/python tools/without_patch.py --all
    .venv-0.30/bin/python tools/without_patch.py "caches from a plan::_reshape" "window bound=TEST"

A name may be followed by ``::`` and a part of it (a method) as verdicts name them, and by ``=``
and another test than the record's, or words for pytest. What ``@patch``, ``@override``, ``derive``
and ``Record.replaced`` put in place for the record is left out in every process, and so is what the
functions of ``STUBS`` do. A failure means something only if the test passes with the patch. What
pytest prints is in ``.cache/without_patch``, a file for each record.

Exit status: 1 if a test passed without its patch, or nothing was left out; else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import foreign_names

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(__file__).resolve().parent / "without_patch_site"
LOGS = ROOT / ".cache" / "without_patch"
FOLDER = "WITHOUT_PATCH_FOLDER"
COMMON = "mkv_ascend.adapters.common"
ADAPTER_0_23 = "mkv_ascend.adapters.vllm_ascend_0_23"
ADAPTER_0_30 = "mkv_ascend.adapters.vllm_ascend_0_30.common"
STUBS: Mapping[str, Sequence[str]] = {
    "a draft's own configuration": [
        f"{COMMON}.drafting.families:use_draft_recurrent_specs",
        f"{COMMON}.patches.expert_groups:make_for_draft",
    ],
    "heads of two sizes": [f"{COMMON}.patches.two_head_sizes:drop_rows_of_other_sizes"],
    "latent attention that rotates nothing": [
        f"{ADAPTER_0_23}.patches.identity_rope:record_identity_rope"
    ],
    "metadata, context and captured launches of a draft's passes": [
        f"{COMMON}.drafting.draft:AscendDraft.begin_later_passes",
        f"{COMMON}.drafting.families:widen_decodes",
        f"{COMMON}.drafting.capture_adapters:use",
    ],
    "models without memory, for explain": [f"{COMMON}.explain.vllm_building:_pretend_ranks"],
    "our platform, worker and model runner": [
        "mkv_ascend.adapters.platform_slot:claim",
        f"{ADAPTER_0_30}.patches.own_options:accept",
    ],
    "proposals over several KV groups, from one plan": [
        f"{COMMON}.drafting.mask_tokens:MaskTokensDraft.bind_layers"
    ],
    "metadata builders and rotary tables by model and group": [
        f"{COMMON}.attention.rope_tables:RopeTables.active"
    ],
    "states go on from what was accepted": [
        f"{COMMON}.patches.accepted_tokens:with_accepted_tokens"
    ],
    "values of another head size than keys": [f"{COMMON}.patches.value_head_size:size_the_output"],
    "verify steps of any method in full graphs": [
        f"{COMMON}.target_graphs:take_lengths_on_the_host"
    ],
    "window bound": [f"{COMMON}.attention.layers:_bound_the_window"],
}
"""Record -> functions of ours that do nothing without it, where nothing else tells what it does."""


def tests_of_records() -> dict[str, tuple[str, ...]]:
    """Name of each record of the installed host -> its tests."""
    from mkv_ascend.adapters import installed as installed_host

    files = foreign_names.sources(foreign_names.name_of(installed_host.adapter()))
    return {placed.record.name: placed.record.tests for placed in foreign_names.records(files)}


def start(asked: Sequence[str]) -> int:
    """Run this program again on the emulated NPU, with the module that leaves records out."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stubs.json").write_text(json.dumps(STUBS), encoding="utf-8")
        Path(folder, "name").write_text("", encoding="utf-8")
        path = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
        emulate = (str(Path(sys.executable).with_name("mkv-ascend")), "emulate")
        return subprocess.run(
            [*emulate, "--strict", "--float32-compute", "--", sys.executable, __file__, *asked],
            env={**os.environ, "PYTHONPATH": path, FOLDER: folder},
            cwd=ROOT,
        ).returncode


def run_all(tests: Sequence[tuple[str, str]], folder: Path, both: bool) -> int:
    """Fork for each record: all that the tests import is imported once."""
    from tests.support import programs
    from tests.support.program_starter import import_what_engines_import

    # Engines are forked from this one, which does as much meanwhile.
    programs._starter()
    import_what_engines_import()
    LOGS.mkdir(parents=True, exist_ok=True)
    return max([_run(name, test, folder, both) for name, test in tests], default=0)


def _pytest(left_out: str, test: str, folder: Path, log: Path) -> int:
    """pytest's exit status in a process that leaves this record out."""
    (folder / "name").write_text(left_out, encoding="utf-8")
    child = os.fork()
    if child == 0:
        _become_pytest(shlex.split(test), log)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(name: str, test: str, folder: Path, both: bool) -> int:
    log = LOGS / re.sub(r"\W+", "-", name)
    if both and _pytest("", test, folder, log.with_suffix(".with.log")) != 0:
        print(f"FAILS WITH IT TOO            {name!r}: {test}", flush=True)
        return 1
    seen, began = folder / "seen", time.monotonic()
    seen.write_text("", encoding="utf-8")
    status = _pytest(name, test, folder, log.with_suffix(".log"))
    left_out = sorted(set(seen.read_text(encoding="utf-8").split("\n")) - {""})
    if not left_out:
        verdict = f"NOTHING LEFT OUT (pytest: {status})"
    elif status == 1:
        verdict = "fails, as it should"
    else:
        verdict = "PASSES" if status == 0 else f"DID NOT RUN (pytest: {status})"
    seconds = time.monotonic() - began
    print(f"{verdict:<20} {seconds:4.0f} s  {name!r} without {', '.join(left_out)}", flush=True)
    return int(not (left_out and status == 1))


def _become_pytest(words: Sequence[str], log: Path) -> None:
    import pytest

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 3
    try:
        status = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *words]))
    finally:
        sys.stdout.flush()
        os._exit(status)  # nothing that was registered for the parent's end


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the description."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help="of a record, or NAME=TEST")
    parser.add_argument("--all", action="store_true", help="every record of the installed host")
    parser.add_argument("--both", action="store_true", help="run each test with its patch, too")
    options = parser.parse_args(arguments)
    known = tests_of_records()
    asked = [(name, test) for name in known if options.all for test in known[name]]
    for given in options.names:
        left_out, _, test = given.partition("=")
        name = left_out.partition("::")[0]
        if name not in known:
            parser.error(f"no record of this host is named {name!r}; docs/patches.md lists them")
        asked += [(left_out, one) for one in ([test] if test else known[name])]
    if FOLDER not in os.environ:
        return start(sys.argv[1:] if arguments is None else arguments)
    return run_all(asked, Path(os.environ[FOLDER]), options.both)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
