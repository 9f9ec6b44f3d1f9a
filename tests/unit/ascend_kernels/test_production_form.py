# SPDX-License-Identifier: Apache-2.0
"""What CANN's compiler sees of the kernels: after preprocessing with the macros that CANN has, each
launch is a ``<<<>>>``, and no macro of ours can meet one of CANN's.

Names and values of the macros are those of CANN's headers ``kernel_macros.h`` (releases 8.5 to 9.2)
and ``kernel_utils_macros.h``.
"""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.ascendc_host import HEADERS, ROOT, compiler

pytestmark = pytest.mark.packaging

KERNELS = ROOT / "csrc" / "ascend"
SOURCES = sorted(path for path in KERNELS.glob("*.cpp") if "__global__" in path.read_text("utf-8"))

QUALIFIERS = {
    "__global__": "__attribute__((cce_kernel))",
    "__gm__": "__attribute__((cce_global))",
    "__ubuf__": "__attribute__((cce_unif_buff))",
    "__aicore__": "[aicore]",
    "__host_aicore__": "[host, aicore]",
}
LIBRARY = {
    "GM_ADDR": "__gm__ uint8_t*",
    "UB_ADDR": "__ubuf__ uint8_t*",
    "SSBUF_ADDR": "__ssbuf__ uint32_t*",
    "ASSERT(x)": "",
    "DEBUG_CODE(T)": "",
    "likely(x)": "__builtin_expect(!!(x), 1)",
    "unlikely(x)": "__builtin_expect(!!(x), 0)",
    "KERNEL_TASK_TYPE_DEFAULT(value)": "",
    "KERNEL_TASK_TYPE(key, value)": "",
    "TILING_KEY_IS(k)": "(TILING_KEY_VAR == (k))",
    "TILING_KEY_VAR": "g_tilingKey",
    "IMPL_MODE_IS(x)": "constexpr((impl_mode::x) == 1)",
    "K_MAX_SHAPE_DIM": "8",
    "QBUF_MAX_LEN": "64",
    "QBUFPOOL_MAX_LEN": "16",
    "MAX_MSG_COUNT": "64",
    "TPIPE_MAX_TYPE": "4",
    "QUE_MAX_DEPTH": "10",
    "ONE_CORE_DUMP_SIZE": "(1024 * 1024)",
    "USE_ISA_INS": "1",
    "ASCENDC_DUMP": "0",
    "ASCEND_IS_AIV": "constexpr(g_coreType == AscendC::AIV)",
    "ASCEND_IS_AIC": "constexpr(g_coreType == AscendC::AIC)",
    "ASCEND_IS_AICORE": "constexpr(false)",
    "SPLIT_CORE_VEC": "",
    "__NPU_ARCH__": "2201",
    "__CCE_AICORE__": "220",
    "__CCE__": "1",
    "__DAV_C220_VEC__": "1",
}
# With CANN's own compiler, and with another one in front of it: ASCENDC_HOST is a macro in both.
WITH_BISHENG = {
    "_ASCENDC_HAS_BISHENG_COMPILER": "1",
    "ASCENDC_HOST": "__host__",
    "ASCENDC_AICORE": "__aicore__",
    "ASCENDC_HOST_AICORE": "__host_aicore__",
}
WITHOUT_BISHENG = {"ASCENDC_HOST": "", "ASCENDC_AICORE": "", "ASCENDC_HOST_AICORE": ""}

# Names of CANN and of its compiler that the checker's own headers stand for.
STANDS_FOR_CANN = {
    "__NPU_ARCH__",
    "__CCE_AICORE__",
    "__aicore__",
    "__global__",
    "__gm__",
    "__ubuf__",
    "GM_ADDR",
    "KERNEL_TASK_TYPE_DEFAULT",
}


def include_folder(folder: Path, macros: Mapping[str, str]) -> Path:
    """What CMake puts on the include path of a build for the NPU: CANN's ``kernel_operator.h``
    (only its macros) and the launch macro, without the checker's headers."""
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    (folder / "kernel_operator.h").write_text("#pragma once\n" + "\n".join(lines) + "\n")
    shutil.copy(HEADERS / "ascendc_launch.h", folder)
    return folder


def preprocessed(source: Path, folder: Path) -> str:
    """The source as the compiler parses it, white space in runs of one."""
    command = [compiler(), "-E", "-P", "-x", "c++", "-std=c++17", "-I", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def kernel_names(text: str) -> list[str]:
    return re.findall(r"__global__ __aicore__ void (\w+)\(", text)


@pytest.mark.parametrize(
    "compiler_macros", [WITH_BISHENG, WITHOUT_BISHENG], ids=["bisheng", "other"]
)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_launch_is_left(source: Path, compiler_macros: dict[str, str], tmp_path: Path) -> None:
    written = source.read_text("utf-8")
    names = kernel_names(written)
    # Without comments, and without macros that a file defines for itself.
    code = re.sub(r"//[^\n]*|^\s*#[^\n]*", "", written, flags=re.MULTILINE)
    plain = "a kernel is not in the plain form in which CANN's stub generator finds it"
    assert 0 < len(names) == code.count("__global__"), plain
    assert len(re.findall("MKV_LAUNCH", code)) == len(names), "a kernel has one launching function"
    macros = {**QUALIFIERS, **LIBRARY, **compiler_macros}
    text = preprocessed(source, include_folder(tmp_path, macros))
    for name in names:
        launches = re.findall(rf"\b{name}<<<\((.+?)\), nullptr, \((.+?)\)>>>\(", text)
        wanted = re.findall(rf"MKV_LAUNCH(?:_LIST)?\(\s*{name},", written)
        assert len(launches) == len(wanted) > 0, "a launch is not <<<>>>"
        assert all(stream == "stream" for _, stream in launches)
        kernel = rf'extern "C" {QUALIFIERS["__global__"]} {QUALIFIERS["__aicore__"]} void {name}('
        assert kernel in text
    assert "ascendc_host" not in text, "the checker is part of the production form"
    assert "MKV_" not in text, "a macro of ours was not expanded"


def test_every_kernel_file_is_looked_at() -> None:
    launched = {path for path in KERNELS.glob("*.cpp") if "MKV_LAUNCH" in path.read_text("utf-8")}
    assert launched == set(SOURCES)


def test_names_of_our_macros_begin_with_ours() -> None:
    """CANN has no macro that begins with MKV_."""
    wrong = []
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        defined = re.findall(r"^\s*#\s*define\s+(\w+)", path.read_text("utf-8"), re.MULTILINE)
        allowed = STANDS_FOR_CANN if path.is_relative_to(HEADERS) else set()
        wrong += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in defined
            if not name.startswith("MKV_") and name not in allowed
        ]
    assert not wrong, "begin it with MKV_: CANN may have a macro of that name"


OF_THE_STUB = (
    "RegisterAscendBinary aiv ret %u",
    "LaunchAscendKernel ret %u",
    "AscendCheckSoCVersion",
    "AllocAscendMemDevice",
    "FreeAscendMemDevice",
)
"""Texts that CANN's launch stub leaves in a library: its messages, and what it calls."""


def test_a_released_library_has_the_stub_that_launch_watch_knows() -> None:
    """vllm-ascend's own kernels are built with the same generator, by the CANN of its release."""
    spec = importlib.util.find_spec("vllm_ascend")
    folders = spec.submodule_search_locations if spec else None
    library = Path((folders or ["."])[0]) / "libvllm_ascend_kernels.so"
    if not library.exists():
        pytest.skip("this release of vllm-ascend has sources alone")
    code = library.read_bytes()
    assert [text for text in OF_THE_STUB if text.encode("ascii") not in code] == []
    wrapped = (ROOT / "cmake" / "ascend.cmake").read_text("utf-8")
    assert all(text.partition(" ")[0] in wrapped for text in OF_THE_STUB)


def test_kernels_name_nothing_that_is_a_macro_of_cann() -> None:
    """A name of ours that CANN has as a macro would be replaced; the qualifiers are meant."""
    meant = {*QUALIFIERS, "GM_ADDR", "KERNEL_TASK_TYPE_DEFAULT"}
    macros = {name.partition("(")[0] for name in {**LIBRARY, **WITH_BISHENG}} - meant
    for path in [*KERNELS.glob("*.cpp"), *KERNELS.glob("*.h"), HEADERS / "ascendc_launch.h"]:
        code = re.sub(r"//[^\n]*", "", path.read_text("utf-8"))
        assert not set(re.findall(r"\w+", code)) & macros, path.name
