# SPDX-License-Identifier: Apache-2.0
"""What is shipped: contents and size of both distributions, and what their commands do alone."""

import json
from pathlib import Path

import pytest

from emulated_npu import launch
from mkv_ascend.cli import COMMANDS
from tests.unit.install.wheels import (
    ROOT,
    TOOLS,
    Built,
    Environment,
    build,
    copy_of_the_repository,
    make_environment,
    run,
    tracked,
)

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

MODEL = ROOT / "tests" / "data" / "configs" / "Qwen3-0.6B"
KIB = 2**10
# Twice what they are: a folder too many shows.
MOST_KIB = {"mkv-ascend": (800, 800), "emulated-npu": (10_000, 10_000)}
"""Wheel and source distribution."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Distribution -> what was built of it."""
    folder = tmp_path_factory.mktemp("built")
    sources = copy_of_the_repository(folder / "sources")
    return {
        "mkv-ascend": build(sources, folder / "mkv-ascend"),
        "emulated-npu": build(sources / "emulated_npu", folder / "emulated-npu"),
    }


@pytest.fixture(scope="module")
def bare(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel of the plugin and nothing else."""
    environment = make_environment(tmp_path_factory.mktemp("bare"))
    environment.install(built["mkv-ascend"].wheel)
    return environment


def test_the_plugins_wheel_holds_the_plugin_only(built: dict[str, Built]) -> None:
    files = built["mkv-ascend"].wheel_files()
    # What tools and docs alone read.
    ours = {*tracked("mkv_ascend")} - {"adapters/patches.toml"}
    assert files == {f"mkv_ascend/{name}" for name in ours}
    assert not [name for name in files if "torch_npu" in name.lower()]


def test_the_emulators_wheel_holds_the_emulator_only(built: dict[str, Built]) -> None:
    package = "emulated_npu/src/emulated_npu"
    assert built["emulated-npu"].wheel_files() == {
        f"emulated_npu/{name}" for name in tracked(package)
    }


def test_the_source_distributions_hold_what_the_native_parts_are_built_from(
    built: dict[str, Built],
) -> None:
    """Links into the repository have become files: nothing outside is needed."""
    native = {
        "mkv-ascend": [f"csrc/{name}" for name in tracked("csrc")],
        "emulated-npu": [f"csrc/{name}" for name in tracked("emulated_npu/csrc")],
    }
    for name, sources in native.items():
        members = built[name].sdist_members()
        needed = {"CMakeLists.txt", "LICENSE", "cmake/torch.cmake", "cmake/native_build.py"}
        assert needed | set(sources) <= set(members)
        assert not [path for path, member in members.items() if member.issym()]


@pytest.mark.parametrize("name", MOST_KIB)
def test_no_distribution_is_larger_than_it_should_be(built: dict[str, Built], name: str) -> None:
    sizes = [path.stat().st_size / KIB for path in (built[name].wheel, built[name].sdist)]
    assert [size for size, most in zip(sizes, MOST_KIB[name], strict=True) if size > most] == []


def test_an_index_would_take_them(built: dict[str, Built]) -> None:
    files = [path for one in built.values() for path in (one.wheel, one.sdist)]
    finished = run(TOOLS / "twine", "check", "--strict", *files)
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.count("PASSED") == len(files)


def test_the_extra_names_the_emulator(built: dict[str, Built]) -> None:
    wheel = built["emulated-npu"].wheel.name.split("-")
    assert f'Requires-Dist: {wheel[0].replace("_", "-")}=={wheel[1]}; extra == "emulator"' in (
        built["mkv-ascend"].metadata()
    )


def command(environment: Environment, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of ``mkv-ascend``."""
    finished = run(environment.scripts / "mkv-ascend", *arguments)
    assert "Traceback" not in finished.stderr + finished.stdout
    return finished.returncode, finished.stdout, finished.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_needs_nothing(bare: Environment, name: str) -> None:
    status, output, errors = command(bare, name, "--help")
    assert (status, errors) == (0, "")
    assert output.startswith(f"usage: mkv-ascend {name} ")


ONE_LINE = {
    "advise": (
        (str(MODEL), "--method", "suffix", "--acceptance", "0.5"),
        "found vllm missing and vllm-ascend missing",
    ),
    "check": (("--", "vllm", "serve", str(MODEL)), "found vllm missing and vllm-ascend missing"),
    "emulate": (("--", "true"), "`pip install ./emulated_npu`"),
}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"doctor", "schema"}))
def test_what_a_command_misses_is_said_in_one_line(bare: Environment, name: str) -> None:
    arguments, message = ONE_LINE[name]
    status, output, errors = command(bare, name, *arguments)
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert errors.startswith(f"mkv-ascend {name}: ")
    assert message in errors


def test_the_doctor_works_in_a_bare_environment(bare: Environment) -> None:
    status, output, errors = command(bare, "doctor")
    assert (status, errors) == (1, "")
    assert "found vllm missing and vllm-ascend missing" in output


def test_the_schema_of_options_needs_nothing(bare: Environment) -> None:
    status, output, errors = command(bare, "schema")
    assert (status, errors) == (0, "")
    assert "mkv_ascend" in json.loads(output)["properties"]


PROGRAM = """
import importlib.util, torch, torch_npu
assert all(importlib.util.find_spec(name) is None for name in ("mkv_ascend", "vllm", "triton"))
rows = torch.arange(6, dtype=torch.float16, device="npu").reshape(2, 3)
weight = torch.ones(3, dtype=torch.float16, device="npu")
normed, _ = torch_npu.npu_rms_norm(rows, weight, epsilon=0.0)
print([round(value, 2) for value in normed.cpu().flatten().tolist()], torch.npu.device_count())
"""
# Row / root of its mean square: [0, 1, 2] / sqrt(5 / 3), [3, 4, 5] / sqrt(50 / 3).
EXPECTED = "[0.0, 0.77, 1.55, 0.73, 0.98, 1.22] 2"


def test_the_emulator_alone_runs_a_program(built: dict[str, Built], tmp_path: Path) -> None:
    """Its wheel beside torch, without the plugin, vLLM and Triton."""
    environment = make_environment(tmp_path / "alone")
    environment.install(built["emulated-npu"].wheel)
    environment.lend(leaving_out=("mkv_ascend", "emulated_npu", "vllm", "triton"))
    (environment.site_packages / "emulated_npu" / "_native.so").symlink_to(
        launch.PACKAGE_FOLDER / "_native.so"
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ("--devices", "2", "--strict", "--counters", "--", "python", program)
    finished = run(environment.scripts / "emulated-npu", *options)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == EXPECTED + "\n"
    assert "npu_rms_norm" in finished.stderr
