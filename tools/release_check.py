# SPDX-License-Identifier: Apache-2.0
"""What is uploaded for a release: built, read by twine, and installed where nothing else is.

    .venv/bin/python tools/release_check.py                 into dist/
    .venv/bin/python tools/release_check.py --tag v0.23.0   the tag, and the notes that it gets

Of both projects the source distribution is built, and from that alone the wheel. Each wheel is
installed without what it depends on, into an environment of each Python that pyproject.toml
supports and that is found here; there its command prints help. With ``--tag`` the version is the
tag's, and CHANGELOG.md has a dated section for it, which is printed.

Exit status: 0, or 1 with what is wrong. Needs the registry for twine and for build requirements.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
UV = Path(sys.executable).parent / "uv"
TWINE = "twine==6.2.0"
PROJECTS = {
    "mkv-ascend": (ROOT, ("mkv-ascend", "--help")),
    "emulated-npu": (ROOT / "emulated_npu", ("python", "-c", "import emulated_npu")),
}
"""Name -> its folder, and what runs without anything that it depends on."""
SUPPORTED = re.compile(r"Programming Language :: Python :: (\d+\.\d+)")
SECTION = re.compile(r"^## \[(?P<version>[^]]+)\] - (?P<date>.+)$", re.MULTILINE)


class ReleaseError(Exception):
    """What keeps a release from being made, in words for the one who makes it."""


def run(*command: str | Path) -> None:
    """Run a command in a folder without sources.

    Raises:
        ReleaseError: it failed, with what it said.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        env={**kept, "MKV_ASCEND_BUILD_OPS": "0", "EMULATED_NPU_BUILD": "0"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip()
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{said}")


def build(output: Path) -> None:
    """Build all distributions into ``output``, in place of those that lie there."""
    for old in distributions(output):
        old.unlink()
    for name, (folder, _) in PROJECTS.items():
        print(f"build    {name}", flush=True)
        run(UV, "build", "--quiet", "--python", sys.executable, "--out-dir", output, folder)


def check_descriptions(output: Path) -> None:
    """Whether the index will show each README."""
    print("describe twine check", flush=True)
    run(UV, "tool", "run", TWINE, "check", "--strict", *distributions(output))


def distributions(folder: Path) -> list[Path]:
    """Wheels and source distributions in ``folder``."""
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def pythons() -> dict[str, Path | None]:
    """Each supported Python, and where it is."""
    found = {}
    for version in SUPPORTED.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
        asked = (UV, "python", "find", "--no-python-downloads", version)
        done = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=False)
        found[version] = None if done.returncode else Path(done.stdout.strip())
    return found


def install(output: Path) -> None:
    """Install each wheel into a bare environment of each Python that is here, and run it."""
    for version, python in pythons().items():
        if python is None:
            print(f"install  not tried with Python {version}, which is not found here", flush=True)
            continue
        print(f"install  Python {version}: {', '.join(PROJECTS)}", flush=True)
        for name, (_, (program, *arguments)) in PROJECTS.items():
            with tempfile.TemporaryDirectory() as folder:
                (wheel,) = output.glob(f"{name.replace('-', '_')}-*.whl")
                run(UV, "venv", "--quiet", "--python", python, folder)
                bin_folder = Path(folder, "bin")
                where = ("--python", bin_folder / "python", "--no-index", "--no-deps", "--quiet")
                run(UV, "pip", "install", *where, wheel)
                run(bin_folder / program, *arguments)


def notes(tag: str, output: Path) -> str:
    """What CHANGELOG.md says of the tag's release.

    Raises:
        ReleaseError: the wheels have another version, or the section has no date.
    """
    version = tag.removeprefix("v")
    wrong = [file.name for file in output.glob("*.whl") if f"-{version}-" not in file.name]
    if wrong:
        raise ReleaseError(f"{tag} is not the version of {', '.join(wrong)}")
    for text, found in sections((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")):
        if found["version"] == version:
            try:
                datetime.date.fromisoformat(found["date"])
            except ValueError:
                raise ReleaseError(
                    f"CHANGELOG.md says {found['date']} of {version}; write its date"
                ) from None
            return text
    raise ReleaseError(f"CHANGELOG.md has no section [{version}]")


def sections(changelog: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The text of each release, with its version and date."""
    heads = list(SECTION.finditer(changelog))
    ends = [head.start() for head in heads[1:]] + [len(changelog)]
    for head, end in zip(heads, ends, strict=True):
        yield changelog[head.end() : end].strip(), head.groupdict()


def main(arguments: list[str] | None = None) -> int:
    """Check a release."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--tag", help="the release's tag, such as v0.23.0")
    parser.add_argument("--output", type=Path, default=DIST, help="folder (dist/)")
    asked = parser.parse_args(arguments)
    output = asked.output.resolve()
    try:
        build(output)
        check_descriptions(output)
        install(output)
        if asked.tag:
            print(notes(asked.tag, output))
    except ReleaseError as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
