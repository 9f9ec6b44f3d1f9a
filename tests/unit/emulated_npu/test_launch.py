# SPDX-License-Identifier: Apache-2.0
"""The launcher and its variables: environment, refusals, command line. No device needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu import host_check, launch, variables
from emulated_npu.device import native
from emulated_npu.launch import EmulatedProcess, LaunchError
from emulated_npu.settings import EmulatorSettings, settings
from emulated_npu.variables import Variable, VariableError
from tests.support.programs import HANG_SECONDS

SETTINGS = EmulatorSettings(
    devices=3,
    memory_bytes=5 * 2**20,
    strict=True,
    float32_compute=True,
    has_triton=True,
    report_counters=True,
)


def run_emulate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkv_ascend", "emulate", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def settings_of(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> EmulatorSettings:
    """The settings that a process with this environment reads."""
    monkeypatch.setattr(os, "environ", environment)
    return settings.__wrapped__()


def test_settings_survive_the_way_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = EmulatedProcess(("true",), SETTINGS).environment({})
    assert settings_of(monkeypatch, environment) == SETTINGS


def test_every_setting_here_differs_from_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the test above could pass with a setting that is not handed over at all.
    defaults = settings_of(monkeypatch, {})
    for name, value in vars(SETTINGS).items():
        assert getattr(defaults, name) != value, name


def test_stand_ins_come_first_on_the_python_path_and_the_inherited_path_is_kept() -> None:
    environment = EmulatedProcess(("true",), SETTINGS).environment({"PYTHONPATH": "/a:/b"})
    folders = environment["PYTHONPATH"].split(os.pathsep)
    assert folders[0] == str(host_check.SITE_FOLDER)
    assert folders[-2:] == ["/a", "/b"]


@pytest.mark.parametrize("offered", [False, True])
def test_the_fa3_stand_in_is_on_the_path_only_where_it_is_offered(offered: bool) -> None:
    base = {variables.FA3.name: variables.FA3.format(offered)}
    environment = EmulatedProcess(("true",), SETTINGS).environment(base)
    assert (str(launch.FA3_FOLDER) in environment["PYTHONPATH"].split(os.pathsep)) is offered
    assert (launch.FA3_FOLDER / "flash_attn_npu_v3").is_dir()


def test_environment_is_complete_and_keeps_what_it_does_not_own() -> None:
    base = {"HOME": "/home/someone", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environment = EmulatedProcess(("true",), SETTINGS).environment(base)
    assert environment["HOME"] == "/home/someone"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["TRITON_INTERPRET"] == "1"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in environment


def test_a_number_of_threads_given_by_the_user_wins() -> None:
    environment = EmulatedProcess(("true",), SETTINGS).environment({"OMP_NUM_THREADS": "4"})
    assert environment["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize("variable", host_check.CANN_VARIABLES)
def test_a_cann_folder_in_the_environment_is_a_sign(variable: str, tmp_path: Path) -> None:
    nothing = tmp_path / "absent"
    signs = host_check.find_real_ascend({variable: str(tmp_path)}, nothing, nothing, [])
    assert len(signs) == 1
    assert variable in signs[0]
    assert str(tmp_path) in signs[0]


def test_a_cann_variable_that_names_no_folder_is_no_sign(tmp_path: Path) -> None:
    nothing = tmp_path / "absent"
    environment = {"ASCEND_HOME_PATH": str(nothing)}
    assert host_check.find_real_ascend(environment, nothing, nothing, []) == []


def test_the_default_folder_and_a_device_file_are_signs(tmp_path: Path) -> None:
    (tmp_path / "davinci0").touch()
    (tmp_path / "davinci_manager").touch()
    signs = host_check.find_real_ascend({}, tmp_path, tmp_path, [])
    assert [str(tmp_path) in sign for sign in signs] == [True, True]
    assert "davinci0" in signs[1]


def make_distribution(folder: Path) -> None:
    metadata = folder / "torch_npu-2.9.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.9.0\n")


def test_a_real_torch_npu_is_a_sign_and_the_emulated_one_is_not(tmp_path: Path) -> None:
    make_distribution(tmp_path)
    nothing = tmp_path / "absent"
    search_path = [str(host_check.SITE_FOLDER), str(tmp_path)]
    signs = host_check.find_real_ascend({}, nothing, nothing, search_path)
    assert len(signs) == 1
    assert "torch_npu 2.9.0" in signs[0]


def test_the_command_is_refused_beside_cann_with_one_line_and_status_2(tmp_path: Path) -> None:
    finished = run_emulate("--", "true", ASCEND_HOME_PATH=str(tmp_path))
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1
    assert "does not run on an Ascend host" in finished.stderr
    assert str(tmp_path) in finished.stderr


def test_the_command_is_refused_beside_a_real_torch_npu(tmp_path: Path) -> None:
    make_distribution(tmp_path)
    finished = run_emulate("--", "true", PYTHONPATH=str(tmp_path))
    assert finished.returncode == 2
    assert "torch_npu 2.9.0 is installed in" in finished.stderr


def test_the_emulated_torch_npu_itself_refuses_beside_cann(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(host_check.SITE_FOLDER),
        "ASCEND_TOOLKIT_HOME": str(tmp_path),
    }
    finished = subprocess.run(
        [sys.executable, "-c", "import acl"], env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 1
    assert "RealAscendError" in finished.stderr
    assert "ASCEND_TOOLKIT_HOME" in finished.stderr


def test_a_missing_native_extension_is_named_with_the_build_command(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"not built.*pip install .*-e \./emulated_npu$"):
        launch.require_native_extension(tmp_path)


@pytest.mark.parametrize(
    ("command", "message"), [((), "no command given"), (("no-such-command",), "command not found")]
)
def test_a_command_that_cannot_start_is_named(command: tuple[str, ...], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        EmulatedProcess(command, SETTINGS).check({"PATH": "/usr/bin"})


def test_a_bad_size_is_refused_with_what_is_allowed() -> None:
    finished = run_emulate("--memory", "4 gibibytes", "--", "true")
    assert finished.returncode == 2
    assert "'4 gibibytes'" in finished.stderr
    assert "GiB" in finished.stderr


def test_a_bad_variable_is_refused_with_its_name() -> None:
    finished = run_emulate("--", "true", EMULATED_NPU_DEVICES="many")
    assert finished.returncode == 2
    assert "EMULATED_NPU_DEVICES is 'many'" in finished.stderr


def test_a_misspelt_variable_is_refused_with_the_nearest_name() -> None:
    finished = run_emulate("--", "true", EMULATED_NPU_DEVICE="2")
    assert finished.returncode == 2
    assert "did you mean EMULATED_NPU_DEVICES?" in finished.stderr


def test_help_shows_every_variable_default_and_an_example() -> None:
    finished = run_emulate("--help")
    assert finished.returncode == 0
    assert "mkv-ascend emulate --devices 2 --memory 1GiB --strict -- python" in finished.stdout
    assert f"default: {variables.DEVICES.default}" in finished.stdout


def test_the_command_line_imports_neither_torch_nor_vllm() -> None:
    script = (
        "import sys; from mkv_ascend.cli import build_parser; build_parser(); "
        "print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "[]"


def test_programs_beside_this_python_are_found_first():
    path = EmulatedProcess(("true",), SETTINGS).environment({"PATH": "/a:/b"})["PATH"]
    assert path.split(os.pathsep) == [str(Path(sys.executable).parent), "/a", "/b"]


PAGE = Path(__file__).parents[3] / "docs" / "environment_variables.md"
EVERY = pytest.mark.parametrize(
    "variable", variables.VARIABLES.values(), ids=lambda variable: variable.name
)


@EVERY
def test_default_holds_when_unset_or_empty(variable: Variable[object]) -> None:
    assert variable.get({}) == variable.get({variable.name: "  "}) == variable.default
    # What a parent hands to a child process comes back as it was.
    assert variable.get({variable.name: variable.format(variable.default)}) == variable.default


@EVERY
def test_a_bad_value_names_variable_value_and_what_is_allowed(variable: Variable[object]) -> None:
    with pytest.raises(VariableError) as caught:
        variable.get({variable.name: "-3 apples"})
    for part in (variable.name, "-3 apples", variable.allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("YES", True), ("off", False)])
def test_switches_take_words(text: str, value: bool) -> None:
    assert variables.STRICT.get({variables.STRICT.name: text}) is value


@pytest.mark.parametrize("text", ["0", "65", "1.5"])
def test_number_of_devices_has_limits(text: str) -> None:
    with pytest.raises(VariableError):
        variables.DEVICES.get({variables.DEVICES.name: text})


@pytest.mark.parametrize("text", ["", "0", "1.5GiB", "-1", "4 gibi", "GiB"])
def test_bytes_refuse_what_is_not_exact(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        variables.parse_bytes(text)


@given(st.integers(min_value=1, max_value=2**50))
def test_bytes_survive_formatting(value: int) -> None:
    assert variables.parse_bytes(variables.format_bytes(value)) == value


def test_variables_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.DEVICES.name, "3")
    assert variables.DEVICES.get() == 3
    monkeypatch.setenv(variables.DEVICES.name, "5")
    assert variables.DEVICES.get() == 5


def test_unknown_variables_are_reported_with_the_nearest_name() -> None:
    environment = {"EMULATED_NPU_DEVICE": "2", "EMULATED_NPU_MEMORY": "1GiB", "PATH": "/bin"}
    (message,) = variables.unknown_variables(environment)
    assert "EMULATED_NPU_DEVICE is set" in message
    assert "did you mean EMULATED_NPU_DEVICES?" in message


def test_the_documentation_holds_the_table() -> None:
    assert variables.markdown_table() in PAGE.read_text(encoding="utf-8"), "run `make generate`"


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    return monkeypatch


def test_a_missing_library_names_the_build_command(
    unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unloaded.setattr(native, "LIBRARY", tmp_path / "_native.so")
    with pytest.raises(native.NativeDeviceMissing, match="not built") as caught:
        native.set_strict(True)
    assert "pip install --no-build-isolation -e ./emulated_npu" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_library_that_does_not_load_is_explained(
    unloaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "_native.so"
    broken.write_bytes(b"not a library")
    unloaded.setattr(native, "LIBRARY", broken)
    with pytest.raises(native.NativeDeviceMissing, match="built for another torch") as caught:
        native.set_strict(True)
    assert "pip install --no-build-isolation -e ./emulated_npu" in str(caught.value)
