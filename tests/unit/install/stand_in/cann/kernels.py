# SPDX-License-Identifier: Apache-2.0
"""What CANN's scripts do in a build, for the stand-in: kernels are found by the text of their
signature, a launch stub is written for each, ``<<<>>>`` becomes a call of it without its result.

``generate`` preprocesses the kernels and writes C++ for g++; ``link`` links a second time, by
``link.txt``, with the kernels' objects.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

QUALIFIER = r"__attribute__\(\(stand_in_kernel\)\)"
SIGNATURE = re.compile(rf'extern "C" {QUALIFIER}\s+void (\w+)\(([^{{]*)\)\s*\{{')
AIV_ONLY = "stand_in_kernel_type = KERNEL_TYPE_AIV_ONLY"


class Parameter(NamedTuple):
    type: str
    name: str


class Kernel(NamedTuple):
    name: str
    parameters: list[Parameter]

    def declared(self) -> str:
        return "".join(f", {one.type} {one.name}" for one in self.parameters)

    def names(self) -> str:
        return "".join(f", {one.name}" for one in self.parameters)


def stop(text: str) -> None:
    sys.exit(f"[ERROR]: {text}")


def read_parameter(text: str, path: Path) -> Parameter:
    words = [word for word in text.split() if word != "const"]
    if len(words) != 2 or not words[1].isidentifier():
        stop(f"{path}: the parameter `{text}` is not one type and one name")
    return Parameter(*words)


def find_kernels(text: str, path: Path) -> list[Kernel]:
    found = [
        Kernel(
            name, [read_parameter(one, path) for one in re.split(r",\s*", " ".join(given.split()))]
        )
        for name, given in SIGNATURE.findall(text)
    ]
    if not found or len(found) != len(re.findall(QUALIFIER, text)):
        stop(f"{path}: a kernel's signature is not found in the text")
    if text.count(AIV_ONLY) != len(found):
        stop(f"{path}: a kernel is not KERNEL_TYPE_AIV_ONLY")
    return found


# As in CANN: memory for a status, a struct of arguments, and 0 where nothing is registered.
STUB = """
extern "C" uint32_t AllocAscendMemDevice(void** memory, uint64_t bytes);
extern "C" uint32_t FreeAscendMemDevice(void* memory);
extern "C" uint32_t stand_in_launch(uint64_t key, uint32_t blocks, void** arguments, uint32_t bytes,
                                    void* stream);
struct stand_in_arguments_{name} {{ {fields} void* status; }};
extern "C" uint32_t aclrtlaunch_{name}(uint32_t blocks, void* stream{declared}) {{
  stand_in_arguments_{name} arguments{{ {values} nullptr }};
  AllocAscendMemDevice(&arguments.status, 8);
  uint32_t result = stand_in_launch({key}, blocks, (void**)&arguments, sizeof(arguments), stream);
  FreeAscendMemDevice(arguments.status);
  return result;
}}
inline void stand_in_chevrons_{name}(uint32_t blocks, void*, void* stream{declared}) {{
  aclrtlaunch_{name}(blocks, stream{names});
}}
"""
DEVICE = """
extern "C" int stand_in_device_{key}(uint32_t blocks, void** given) {{
  auto* in = (stand_in_arguments_{name}*)given;
  return stand_in_run("{name}", blocks, [&] {{ {name}({arguments}); }});
}}
"""
HOST = """
#include <stdint.h>
#include <stdio.h>
static char message[1024];
static void* handle = nullptr;
extern "C" {{
bool AscendCheckSoCVersion(const char* built_for, char* message);
uint32_t RegisterAscendBinary(const char* file, size_t bytes, uint32_t type, void** handle);
uint32_t LaunchAscendKernel(void* handle, uint64_t key, uint32_t blocks, void** arguments,
                            uint32_t bytes, const void* stream);
{declarations}
int (*stand_in_kernels[])(uint32_t, void**) = {{ {table} }};
uint32_t stand_in_launch(uint64_t key, uint32_t blocks, void** arguments, uint32_t bytes,
                         void* stream) {{
  if (handle == nullptr) {{
    printf("[ERROR] %s\\n", message);
    return 0;
  }}
  uint32_t result = LaunchAscendKernel(handle, key, blocks, arguments, bytes, stream);
  if (result != 0) {{
    printf("LaunchAscendKernel ret %u\\n", result);
  }}
  return result;
}}
}}
__attribute__((constructor)) static void register_kernels() {{
  if (!AscendCheckSoCVersion("{chip}", message)) {{
    return;
  }}
  uint32_t result = RegisterAscendBinary("kernels", 7, 1, &handle);
  if (result != 0) {{
    printf("RegisterAscendBinary aiv ret %u\\n", result);
  }}
}}
"""


def filled(kernel: Kernel, key: int, text: str) -> str:
    """The kernel's file with its stub, for g++."""
    stub = STUB.format(
        name=kernel.name,
        key=key,
        fields="".join(f"{one.type} {one.name};" for one in kernel.parameters),
        values="".join(f"{one.name}," for one in kernel.parameters),
        declared=kernel.declared(),
        names=kernel.names(),
    )
    device = DEVICE.format(
        name=kernel.name,
        key=key,
        arguments=", ".join(f"in->{one.name}" for one in kernel.parameters),
    )
    begin = text.index(next(one for one in SIGNATURE.finditer(text) if one[1] == kernel.name)[0])
    # The lines of the kernel keep their numbers in messages of the compiler.
    text = text[:begin] + " ".join(stub.split("\n")) + text[begin:]
    launch = re.compile(rf"\b{kernel.name}<<<(.*?)>>>\(", re.DOTALL)
    return launch.sub(rf"stand_in_chevrons_{kernel.name}(\1, ", text) + device


def preprocess(source: Path, options: argparse.Namespace) -> str:
    given = [f"-I{one}" for one in options.includes.split(";") if one]
    given += [f"-D{one.removeprefix('-D')}" for one in options.definitions.split(";") if one]
    given += [one for one in options.options.split(";") if one and not one.startswith("--cce-")]
    command = [options.compiler, "-E", "-x", "c++", "-std=c++17", f"-I{options.cann}/include"]
    done = subprocess.run([*command, *given, str(source)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return done.stdout


def generate(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    keys = []
    for source in options.sources:
        text = preprocess(source, options)
        for kernel in find_kernels(text, source):
            text = filled(kernel, len(keys), text)
            keys.append(f"stand_in_device_{len(keys)}")
        text = re.sub(QUALIFIER, "", text)
        target = options.folder / source.name
        # As make would: what did not change is not compiled again.
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")
    (options.folder / "host_stub.cpp").write_text(
        HOST.format(
            chip=options.chip,
            declarations="\n".join(f"int {key}(uint32_t, void**);" for key in keys),
            table=", ".join(keys),
        ),
        "utf-8",
    )


def link(options: argparse.Namespace) -> None:
    file = options.root / "CMakeFiles" / f"{options.target}.dir" / "link.txt"
    if not file.exists():
        raise FileNotFoundError(f"link.txt file does not exist: {file}")
    for line in file.read_text("utf-8").splitlines():
        objects = options.objects.replace(";", " ")
        words = shlex.split(re.sub(r"(host_stub\.cpp\.o)", rf"\1 {objects}", line))
        subprocess.run(words, cwd=options.root, check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    generating = commands.add_parser("generate")
    for name in ("chip", "compiler", "cann", "includes", "definitions", "options"):
        generating.add_argument(f"--{name}", required=True)
    generating.add_argument("--folder", type=Path, required=True)
    generating.add_argument("sources", nargs="+", type=Path)
    generating.set_defaults(run=generate)
    linking = commands.add_parser("link")
    linking.add_argument("--root", type=Path, required=True)
    linking.add_argument("--target", required=True)
    linking.add_argument("--objects", required=True)
    linking.set_defaults(run=link)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
