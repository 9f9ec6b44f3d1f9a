# SPDX-License-Identifier: Apache-2.0
"""What SECURITY.md says of checkpoints, configurations and requests."""

from __future__ import annotations

import ast
import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mkv_ascend import cli, envs

PACKAGE = Path(cli.__file__).parent
CONFIG = Path(__file__).resolve().parents[1] / "data" / "configs" / "Llama-3.1-8B" / "config.json"


class WritesAFile:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Code in each place that a library might run; it makes the folder ``ran``."""
    folder, ran = tmp_path / "<b>model", tmp_path / "ran"
    folder.mkdir()
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("own", "configuration_llama", "modeling_llama", "__init__"):
        (folder / f"{name}.py").write_text(f"import os; os.mkdir({str(ran)!r})", encoding="utf-8")
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(WritesAFile(ran)))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "--no-build", "--model", "MODEL"),
        ("check", "--", "vllm", "serve", "MODEL", "--trust-remote-code"),
        ("advise", "MODEL", "--method", "suffix", "--acceptance", "0.5"),
    ],
    ids=lambda command: command[0],
)
def test_a_checkpoint_runs_no_code(command: tuple[str, ...], checkpoint: Path) -> None:
    """Neither of its Python files nor of its pickles."""
    given = [str(checkpoint) if word == "MODEL" else word for word in command]
    assert cli.main(given) == 0
    assert not (checkpoint.parent / "ran").exists()
    # What would have been seen.
    pickle.loads((checkpoint / "model.pt").read_bytes())
    assert (checkpoint.parent / "ran").exists()


def test_names_of_a_checkpoint_are_text_in_a_page(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint.name
    asked = ("explain", "--no-build", "--format", "html", "--model", str(checkpoint))
    assert cli.main(list(asked)) == 0
    page = capsys.readouterr().out
    assert folder not in page
    elements = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).iter()
    assert any(folder in (element.text or "") for element in elements)


METRICS_FOLDER = """
import os
os.umask(0)
from mkv_ascend.metrics.store import Store, collect_from_workers, folder
collect_from_workers()
Store(folder(), {"model_name": "m", "engine": "0"})
print(oct(os.stat(folder()).st_mode), folder())
"""


def test_files_of_metrics_are_the_users_alone() -> None:
    """Whatever the umask is: others cannot enter their folder, which ends with the server."""
    hidden = {name: value for name, value in os.environ.items() if name != envs.METRICS.name}
    done = subprocess.run(
        [sys.executable, "-c", METRICS_FOLDER], env=hidden, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    mode, where = done.stdout.split(maxsplit=1)
    assert stat.S_IMODE(int(mode, 8)) == stat.S_IRWXU
    assert not Path(where.strip()).exists()


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Each part of each file of the package: its file, and itself."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(PACKAGE)), node


def test_nothing_of_ours_listens() -> None:
    """A port of the loopback interface is bound, so that a server of vLLM's own finds it free."""
    servers = {"asyncio", "http.server", "socket", "socketserver", "uvicorn", "zmq"}
    found = set()
    for file, node in nodes():
        if isinstance(node, ast.Import):
            found |= {(file, alias.name) for alias in node.names if alias.name in servers}
        elif isinstance(node, ast.ImportFrom) and node.module in servers:
            found.add((file, node.module))
    assert found == {("commands/demo_server.py", "socket")}
    text = (PACKAGE / "commands" / "demo_server.py").read_text(encoding="utf-8")
    assert text.count(".bind(") == text.count('holder.bind(("127.0.0.1", 0))') == 1
    assert ".listen(" not in text


def test_nothing_of_ours_evaluates_text_or_loads_pickles() -> None:
    forbidden = {"eval", "exec", "os.system", "tempfile.mktemp", "yaml.load", "yaml.unsafe_load"}
    forbidden |= {"torch.load", "pickle.load", "pickle.loads", "marshal.loads", "shelve.open"}
    called = {
        (file, ast.unparse(node.func)) for file, node in nodes() if isinstance(node, ast.Call)
    }
    assert not [(file, name) for file, name in called if name in forbidden]
