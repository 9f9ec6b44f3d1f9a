# SPDX-License-Identifier: Apache-2.0
"""Commands that are run from the folder of a downloaded model: nothing that lies there is run."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hostile_files import CONFIG, WritesAFile

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("mkv-ascend")
PACKAGES = (
    *("mkv_ascend", "emulated_npu", "vllm", "vllm_ascend", "torch", "torch_npu", "transformers"),
    *("numpy", "yaml", "huggingface_hub", "jinja2", "acl", "regex", "sitecustomize"),
    *("usercustomize", "conftest", "_distutils_hack"),
)
"""What commands import of others; beside all of the standard library."""

COMMANDS = {"doctor": ("doctor",), "schema": ("schema",)}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a trap for each module that a command may import.

    A trap says its name in the file ``ran`` beside the folder.
    """
    folder = tmp_path_factory.mktemp("hostile") / "model"
    folder.mkdir()
    ran = folder.parent / "ran"
    trap = f"print(__name__, file=open({str(ran)!r}, 'a'))\n"
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(trap, encoding="utf-8")
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(trap, encoding="utf-8")
        (folder / name / "__main__.py").write_text(trap, encoding="utf-8")
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("own", "configuration_llama", "modeling_llama", "__init__", "__main__"):
        (folder / f"{name}.py").write_text(trap, encoding="utf-8")
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(WritesAFile(ran)))
    for name in ("a.pth", "python311._pth"):
        (folder / name).write_text(f"import os; os.mkdir({str(ran)!r})\n", encoding="utf-8")
    (folder / "pyvenv.cfg").write_text("home = .\n", encoding="utf-8")
    return folder


def run(folder: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it there. ``PYTHONPATH`` finds the sources of this test."""
    folders = [str(ROOT), str(ROOT / "emulated_npu" / "src"), os.environ.get("PYTHONPATH", "")]
    # Unit tests leave all plugins out.
    variables = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    return subprocess.run(
        [str(COMMAND), *words],
        cwd=folder,
        env={**variables, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_nothing_of_the_folder(name: str, hostile: Path) -> None:
    done = run(hostile, COMMANDS[name])
    assert not (hostile.parent / "ran").exists()
    # The doctor finds no NPU.
    assert done.returncode == 0 or name == "doctor", done.stderr
    assert "Traceback" not in done.stderr
    if name == "doctor":
        assert "torch_npu" in done.stdout
        assert "mkv_ascend.commands.doctor" not in done.stdout


@pytest.mark.nightly("half a minute for one more command")
def test_models_that_vllm_makes_run_nothing_of_the_folder(hostile: Path) -> None:
    """In a process whose children, which look at the models' classes, start as Python starts."""
    done = run(hostile, ("check", "--plan", "--", "vllm", "serve", "."))
    assert not (hostile.parent / "ran").exists()
    assert done.returncode == 0, done.stderr


def test_the_traps_are_traps(hostile: Path) -> None:
    """What Python does by itself there."""
    subprocess.run([sys.executable, "-c", "import json"], cwd=hostile, check=False, env={})
    ran = hostile.parent / "ran"
    assert "json" in ran.read_text(encoding="utf-8").split()
    ran.unlink()


def test_an_empty_entry_of_the_path_is_not_handed_on(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``PYTHONPATH=/a:$PYTHONPATH`` ends with one, as CANN's ``set_env.sh`` writes it."""
    from mkv_ascend.child_process import run_module

    monkeypatch.chdir(hostile)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:"}
    done = run_module("mkv_ascend.envs", "", variables, 60)
    assert "MKV_ASCEND" in done.stdout
    assert not (hostile.parent / "ran").exists()
