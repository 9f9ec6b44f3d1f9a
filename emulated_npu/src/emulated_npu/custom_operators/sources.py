# SPDX-License-Identifier: Apache-2.0
"""Operator schemas from vllm-ascend's sources, for an installation without its extension module.

A source distribution that is installed where CANN is missing brings neither the extension module
nor the C++ that would have become one. So the schemas are taken from the distribution itself, once,
and kept beside the installed package::

    pip download --no-deps --no-binary :all: vllm-ascend==VERSION
    python -m emulated_npu.custom_operators.sources vllm_ascend-VERSION.tar.gz

A folder of unpacked sources does as well as the archive. The file's name has the version in it, so
that another version does not get it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from emulated_npu.custom_operators.schemas import (
    SchemaError,
    collect,
    installed_folders,
    installed_version,
    written_file,
)

BINDING = Path("csrc") / "torch_binding.cpp"
"""Where vllm-ascend registers its operators, in its sources."""

OTHER_DEVICE = "ASCEND_PLATFORM_310P"
"""The macro of a device that has other operators. All other macros count as defined: they name
parts that the release for the emulated device (Ascend910B) is built with."""

_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_DEFINITION = re.compile(rf"\.def\(\s*((?:{_STRING}\s*)+)\s*[,)]")


@dataclass(frozen=True)
class Sources:
    """vllm-ascend's sources: the version that they name, and the text of BINDING."""

    version: str
    binding: str


def schemas_in_sources(text: str, origin: Path) -> dict[str, str]:
    """Operator name -> schema, from the C++ that registers them; see schemas.collect for errors."""
    code = _COMMENT.sub("", _compiled(text))
    found = []
    for definition in _DEFINITION.finditer(code):
        # Adjacent C++ strings, which Python joins the same way.
        found.append(str(ast.literal_eval(f"({definition.group(1)})")))
    return collect(found, origin)


def _compiled(text: str) -> str:
    """The lines that the compiler would see, by the rule at OTHER_DEVICE."""
    lines: list[str] = []
    taken: list[bool] = []
    for line in text.splitlines():
        directive = re.match(r"\s*#\s*(ifdef|ifndef|if|else|elif|endif)\b(.*)", line)
        if directive is None:
            if all(taken):
                lines.append(line)
        elif directive[1].startswith("if"):
            named = OTHER_DEVICE in directive[2]
            taken.append(named if directive[1] == "ifndef" else not named)
        elif directive[1] == "endif":
            taken.pop()
        else:
            taken[-1] = not taken[-1]
    return "\n".join(lines)


def read_sources(path: Path) -> Sources:
    """The sources in a source distribution (.tar.gz) or an unpacked folder.

    Raises SchemaError if they are not those of vllm-ascend.
    """
    try:
        if path.is_dir():
            information, binding = ((path / name).read_bytes() for name in ("PKG-INFO", BINDING))
        else:
            with tarfile.open(path) as archive:
                top = archive.getnames()[0].split("/")[0]
                information, binding = (
                    _member(archive, f"{top}/{name}") for name in ("PKG-INFO", BINDING)
                )
    except (OSError, KeyError, IndexError, tarfile.TarError) as error:
        raise SchemaError(
            f"{path} does not hold the sources of vllm-ascend ({error}): give the archive that "
            f"`pip download --no-deps --no-binary :all: vllm-ascend==VERSION` fetches, or the "
            f"folder that it unpacks to, with PKG-INFO and {BINDING}"
        ) from error
    version = HeaderParser().parsestr(information.decode())["Version"]
    return Sources(version, binding.decode())


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def write_schemas(path: Path) -> Path:
    """Keep the schemas of the sources at ``path`` for the installed vllm-ascend.

    Returns the file. Raises SchemaError if no vllm-ascend is installed, or one of another version.
    """
    folders = installed_folders()
    if not folders:
        raise SchemaError("vllm-ascend is not installed here: install it first")
    sources = read_sources(path)
    installed = installed_version()
    if sources.version != installed:
        raise SchemaError(
            f"{path} holds vllm-ascend {sources.version}, installed is {installed}: give the "
            f"sources of {installed}"
        )
    schemas = schemas_in_sources(sources.binding, path)
    target = written_file(folders[0])
    lines = "".join(f"{schema}\n" for schema in schemas.values())
    target.write_text(lines, encoding="ascii")
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m emulated_npu.custom_operators.sources",
        description="Keep the operator schemas of vllm-ascend's sources for the emulated NPU.",
    )
    parser.add_argument("sources", type=Path, help="source distribution (.tar.gz) or its folder")
    try:
        written = write_schemas(parser.parse_args(arguments).sources)
    except SchemaError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(f"wrote {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
