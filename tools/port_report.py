# SPDX-License-Identifier: Apache-2.0
"""Compare the foreign code that an adapter replaces, overrides or imports with any host.

    python tools/port_report.py                               the host of this environment
    python tools/port_report.py --host /path/to/site-packages another environment
    python tools/port_report.py --host unpacked/              an unpacked wheel or source archive
    python tools/port_report.py --release 0.23.0.post1        fetch that vllm-ascend, by its hash

For each name it says: same, changed (with the difference to the recorded source where that is at
hand) or gone. Exit status 0: every replaced or overridden name is the same and none is gone.
Status 1: some are not. Status 2: the host could not be read. Names of torch_npu, whose sources are
in neither package, are looked up in the stand-in of the emulated NPU.

The adapter is the one that serves this environment, or ``--adapter`` names its folder.
``--record VERSION`` writes the fingerprints of the host's vllm-ascend, as that version, into the
adapter's fingerprints.json: for a version that was tested, not before. Those of names that are only
imported, which no start-up looks at, lie in tools/imported_names, and in no wheel.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import foreign_names
import host_release
import torch_npu_names
from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.adapters.contract import HostAdapter
from mkv_ascend.adapters.fingerprints import PARTS, HostSource, digest_of, print_of, read

IMPORTED = Path(__file__).resolve().parent / "imported_names"
"""Folder of the fingerprints of names that are only imported, a file for each adapter."""
DISTRIBUTIONS = {"vllm": "vllm", "vllm_ascend": "vllm-ascend"}
"""Package -> distribution."""


@dataclass(frozen=True)
class Line:
    """What became of one foreign name.

    Attributes:
        name: ``module:qualified.name``.
        state: same, changed or gone.
        use: replaced (or overridden), read, or imported.
        patches: the patches that name it.
        difference: unified, recorded source against the host's; empty where it is not at hand.
    """

    name: str
    state: str
    use: str
    patches: tuple[str, ...]
    difference: str = ""


def names_in_use(host: HostSource, adapter: HostAdapter) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every foreign name of an adapter -> how it is used, and the patches that name it."""
    uses: dict[str, tuple[str, tuple[str, ...]]] = {}
    files = foreign_names.sources(foreign_names.name_of(adapter))
    for name in foreign_names.imports(files):
        owner = host.find(name.rpartition(".")[0]) if "." in name.partition(":")[2] else None
        # What our code reads of a class or an object may exist at run time only.
        if owner is None or owner.node is None:
            uses[name] = ("imported", ())
    for placed in foreign_names.records(files):
        record = placed.record
        for use, names in (("read", record.reads), ("replaced", record.targets)):
            for name in names:
                before, patches = uses.get(name, ("imported", ()))
                stronger = "replaced" if "replaced" in (use, before) else use
                uses[name] = (stronger, tuple(sorted({*patches, record.name})))
    return dict(sorted(uses.items()))


def compare(
    adapter: HostAdapter, host: HostSource, base: HostSource | None, packages: Iterable[str]
) -> list[Line]:
    """One line for each name in ``packages`` that is recorded of the adapter.

    ``base``: a host whose source is the recorded one, for differences; None: none is at hand.
    """
    known, lines = recorded(adapter), []
    for package in packages:
        first = next(iter(known[DISTRIBUTIONS[package]].values()))
        for name, entry in first["names"].items():
            use, patches = entry["use"], tuple(entry.get("patches", ()))
            definition = host.find(name)
            if definition is None:
                lines.append(Line(name, "gone", use, patches))
            elif print_of(name, use, definition) == entry["print"]:
                lines.append(Line(name, "same", use, patches))
            else:
                difference = "" if base is None else _difference(name, base, host)
                lines.append(Line(name, "changed", use, patches, difference))
    return lines


def recorded(adapter: HostAdapter) -> dict[str, dict[str, Any]]:
    """All that is recorded of an adapter: distribution -> version -> ``files`` and ``names``."""
    found = read(adapter.FINGERPRINTS)
    for distribution, versions in read(imported_by(adapter)).items():
        for version, imported in versions.items():
            entry = found[distribution][version]
            names = {**imported["names"], **entry["names"]}
            entry["names"] = dict(sorted(names.items()))
    return found


def imported_by(adapter: HostAdapter) -> Path:
    """The file of names that the adapter only imports."""
    return IMPORTED / f"{foreign_names.name_of(adapter)}.json"


def of_torch_npu(adapter: HostAdapter) -> list[Line]:
    """One line for each name of torch_npu that the adapter uses; none without the emulated NPU."""
    if not torch_npu_names.is_at_hand():
        return []
    used = torch_npu_names.used(foreign_names.sources(foreign_names.name_of(adapter)))
    states = ("same" if torch_npu_names.is_offered(name) else "gone" for name in used)
    return [Line(name, state, "imported", ()) for name, state in zip(used, states, strict=True)]


def _difference(name: str, base: HostSource, host: HostSource) -> str:
    before, after = (_text(source, name) for source in (base, host))
    return "\n".join(difflib.unified_diff(before, after, "recorded", "this host", lineterm=""))


def _text(source: HostSource, name: str) -> list[str]:
    definition = source.find(name)
    if definition is None or definition.node is None:
        return []
    return ast.unparse(definition.node).splitlines()


def record(adapter: HostAdapter, host: HostSource, package: str) -> dict[str, Any]:
    """What is recorded of one distribution in one version.

    Raises:
        LookupError: names that the host does not have.
    """
    names, modules, missing = {}, set(), []
    for name, (use, patches) in names_in_use(host, adapter).items():
        asked = name.partition(":")[0]
        if asked.partition(".")[0] != package:
            continue
        definition = host.find(name)
        if definition is None:
            missing.append(name)
            continue
        names[name] = {
            "print": print_of(name, use, definition),
            **({} if definition.module == asked else {"module": definition.module}),
            "use": use,
            **({"patches": list(patches)} if patches else {}),
        }
        if use != "imported":
            modules |= {asked, definition.module}
    if missing:
        raise LookupError(f"the host does not have {', '.join(missing)}")
    files = {module: digest_of(host.file_of(module)) for module in sorted(modules)}
    return {"files": files, "names": names}


def write_record(adapter: HostAdapter, host: HostSource, as_versions: dict[str, str]) -> None:
    """Write what is recorded of these packages' versions anew; others stay."""
    found = recorded(adapter) if adapter.FINGERPRINTS.exists() else {}
    for package, version in as_versions.items():
        entries = found.setdefault(DISTRIBUTIONS[package], {})
        entries[version] = record(adapter, host, package)
    for path, imported in ((adapter.FINGERPRINTS, False), (imported_by(adapter), True)):
        path.write_text(_compact(_differences(_part(found, imported))), encoding="utf-8")


def _part(found: dict[str, dict[str, Any]], imported: bool) -> dict[str, dict[str, Any]]:
    """What is watched at a start, or with ``imported`` the names that are not."""
    return {
        distribution: {
            version: {
                "files": {} if imported else kept["files"],
                "names": {
                    name: entry
                    for name, entry in kept["names"].items()
                    if (entry["use"] == "imported") == imported
                },
            }
            for version, kept in versions.items()
        }
        for distribution, versions in found.items()
    }


def _differences(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of versions behind the first one what is otherwise than there, as ``read`` takes it."""
    less: dict[str, dict[str, Any]] = {}
    for distribution, versions in found.items():
        first, *others = versions
        less[distribution] = {first: versions[first]}
        for version in others:
            less[distribution][version] = {
                part: {
                    name: kept
                    for name, kept in versions[version][part].items()
                    if versions[first][part].get(name) != kept
                }
                for part in PARTS
            }
    return less


def _compact(found: dict[str, dict[str, Any]]) -> str:
    """JSON with one name a line."""
    parts = []
    for distribution, recorded in found.items():
        entries = []
        for version, kept in recorded.items():
            files = ",\n".join(
                f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in kept["files"].items()
            )
            names = ",\n".join(
                f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in kept["names"].items()
            )
            entries.append(
                f'  {json.dumps(version)}: {{\n   "files": {{\n{files}\n   }},\n'
                f'   "names": {{\n{names}\n   }}\n  }}'
            )
        parts.append(f" {json.dumps(distribution)}: {{\n" + ",\n".join(entries) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def describe(lines: Sequence[Line], whole: bool) -> str:
    """The report as text. ``whole``: names that are the same, too."""
    out = []
    for line in lines:
        if line.state != "same" or whole:
            named = f"  [{', '.join(line.patches)}]" if line.patches else ""
            out.append(f"{line.state:<8}{line.use:<9} {line.name}{named}")
            out += [f"    {text}" for text in line.difference.splitlines()]
    counts = ", ".join(
        f"{sum(line.state == state for line in lines)} {state}"
        for state in ("same", "changed", "gone")
    )
    return "\n".join([*out, f"{len(lines)} foreign names: {counts}"])


def breaks(lines: Iterable[Line]) -> bool:
    """Whether something that is replaced or counted on is another, or anything is gone."""
    return any(
        line.state == "gone" or (line.state == "changed" and line.use != "imported")
        for line in lines
    )


def environment() -> dict[str, Path]:
    """The packages of this environment -> the folders they lie in; nothing is imported."""
    found = {}
    for package in DISTRIBUTIONS:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found[package] = Path(spec.submodule_search_locations[0]).resolve().parent
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument("--host", type=Path, help="folder that holds vllm_ascend/, vllm/ or both")
    where.add_argument(
        "--release", choices=sorted(host_release.RELEASES), help="fetch this release"
    )
    made.add_argument(
        "--adapter",
        choices=[foreign_names.name_of(adapter) for adapter in installed_host.adapters()],
        help="this adapter, by the name of its folder",
    )
    made.add_argument("--patch", help="only this patch, with its differences")
    made.add_argument("--all", action="store_true", help="list names that are the same, too")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--record", metavar="VERSION", help="write fingerprints.json; see above")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the description."""
    options = parser().parse_args(arguments)
    try:
        return _report(options)
    except (host_release.FetchError, LookupError, OSError) as error:
        print(f"port_report: {error}", file=sys.stderr)
        return 2


def _asked(options: argparse.Namespace) -> dict[str, Path]:
    """The packages to look at -> their folders."""
    if options.host is None and options.release is None:
        return environment()
    folder = host_release.fetch(options.release) if options.release else options.host
    found = {package: folder for package in DISTRIBUTIONS if (folder / package).is_dir()}
    if not found:
        raise LookupError(f"{folder} holds neither vllm/ nor vllm_ascend/")
    return found


def _adapter(name: str | None) -> HostAdapter:
    if name is None:
        return installed_host.adapter()
    return next(x for x in installed_host.adapters() if foreign_names.name_of(x) == name)


def _report(options: argparse.Namespace) -> int:
    asked, here, adapter = _asked(options), environment(), _adapter(options.adapter)
    # One of the two alone imports from the other: that is this environment's.
    host = HostSource({**here, **asked})
    if options.record:
        as_versions = dict.fromkeys(asked, options.record)
        if "vllm" in as_versions:
            as_versions["vllm"] = metadata.version("vllm").partition("+")[0]
        write_record(adapter, host, as_versions)
        print(f"wrote {adapter.FINGERPRINTS}")
        return 0
    lines = compare(adapter, host, HostSource(here) if asked != here else None, asked)
    lines += of_torch_npu(adapter)
    if options.patch:
        lines = [line for line in lines if options.patch in line.patches]
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=1))
    else:
        print(describe(lines, options.all))
    return int(breaks(lines))


if __name__ == "__main__":
    sys.exit(main())
