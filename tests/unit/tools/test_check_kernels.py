# SPDX-License-Identifier: Apache-2.0
"""The front-end check of AscendC kernels: every planted fault is found, on its line and by its
rule; the kernels have none."""

import re
from pathlib import Path

import pytest

import check_kernels
from kernel_calls import STACK_BYTES
from kernel_syntax import ROOT

CASES = ROOT / "csrc" / "ascendc_host" / "tests"
PLANTED = CASES / "front_end.cpp"
HEAD = '#include "kernel_operator.h"\n#include "ascendc_launch.h"\n'


def planted() -> set[tuple[int, str]]:
    """Line and rule of each fault in the source."""
    lines = PLANTED.read_text("utf-8").splitlines()
    marks = ((number, re.search(r"// WRONG (\w+)$", line)) for number, line in enumerate(lines, 1))
    return {(number, mark[1]) for number, mark in marks if mark}


def test_every_planted_fault_is_found_and_nothing_else() -> None:
    outcome = check_kernels.check(PLANTED)
    assert {(one.line, one.rule) for one in outcome.findings} == planted()
    assert {Path(one.file) for one in outcome.findings} == {PLANTED}


def test_stacks_are_the_sum_along_the_deepest_path() -> None:
    """By hand: a kernel object of 160 tensors of 96 bytes, and arrays of 8 KB and 12 KB; what is
    beside them is small."""
    stacks = check_kernels.check(PLANTED).stacks
    arrays = {"fits_kernel": 8 * 1024, "too_deep_kernel": 20 * 1024}
    for name, bytes_of_arrays in arrays.items():
        assert 0 <= stacks[name] - (160 * 96 + bytes_of_arrays) < 256
    assert stacks["fits_kernel"] < STACK_BYTES < stacks["too_deep_kernel"]


@pytest.mark.parametrize("source", check_kernels.kernel_sources(), ids=lambda path: path.stem)
def test_the_kernels_are_clean(source: Path) -> None:
    outcome = check_kernels.check(source)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.stacks, "no kernel was found in it"
    # A frame of nothing would mean that the calls are not followed: the TPipe alone has 1.2 KB.
    assert all(1208 < needed <= STACK_BYTES for needed in outcome.stacks.values())


@pytest.mark.parametrize("header", ["algorithm", "cmath", "cstring", "string", "vector", "math.h"])
def test_headers_of_the_standard_library_are_refused(header: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cpp"
    source.write_text(f"{HEAD}#include <{header}>\n")
    (finding,) = check_kernels.check(source).findings
    assert (finding.line, finding.rule) == (3, "standard_library")


def test_findings_in_headers_name_the_header(tmp_path: Path) -> None:
    (tmp_path / "of_ours.h").write_text("__aicore__ inline float Half() {\n  return 0.5;\n}\n")
    source = tmp_path / "kernel.cpp"
    source.write_text(f'{HEAD}#include "of_ours.h"\n')
    (finding,) = check_kernels.check(source).findings
    assert (Path(finding.file).name, finding.line, finding.rule) == ("of_ours.h", 2, "double")


def test_the_declarations_have_what_the_checker_has(tmp_path: Path) -> None:
    """The source whose right lines use every call that the checker models parses with them too."""
    source = tmp_path / "kernel.cpp"
    source.write_text(f'#define MKV_ONLY_RIGHT\n#include "{CASES / "does_not_compile.cpp"}"\n')
    assert not check_kernels.check(source).findings
