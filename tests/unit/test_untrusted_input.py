# SPDX-License-Identifier: Apache-2.0
"""What SECURITY.md says of checkpoints, configurations and requests."""

import ast
import contextlib
import functools
import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mkv_ascend import cli, envs
from mkv_ascend.adapters.refusal import StartUpRefused
from tests.support.hostile_files import CONFIG, WritesAFile
from tests.support.judging import forked_judges

__all__ = ["forked_judges"]

PACKAGE = Path(cli.__file__).parent


pytestmark = pytest.mark.usefixtures("forked_judges")


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
        ("explain", "MODEL"),
        ("check", "--", "vllm", "serve", "MODEL"),
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
    assert cli.main(["explain", "--format", "html", str(checkpoint)]) == 0
    page = capsys.readouterr().out
    assert folder not in page
    elements = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).iter()
    assert any(folder in (element.text or "") for element in elements)


HOSTILE = "\x1b]0;title\x07\x1b[2J\u202e\x9b31m" + "A" * 40_000
"""What a terminal obeys, and more than anybody reads."""
FIELDS = {
    "model_type": HOSTILE,
    "architectures": [HOSTILE],
    "dtype": HOSTILE,
    "torch_dtype": HOSTILE,
    "layer_types": [HOSTILE] * 32,
    "quantization_config": {"quant_method": HOSTILE},
    "rope_parameters": {"rope_type": HOSTILE},
    "num_attention_heads": HOSTILE,
    HOSTILE: HOSTILE,
}
REFUSED = "cannot be served [host]"
OPTIONS = (
    *("--kv-cache-dtype", "--dtype", "--quantization", "--additional-config", "--port"),
    *("--speculative-config", "--tensor-parallel-size", "--attention-backend", "--config"),
)


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """All that a command says, which a terminal shows as it is."""
    with contextlib.suppress(SystemExit):
        cli.main(list(command))
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert len(text) < 25_000
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field[:20].encode().hex())
def test_values_of_a_checkpoint_are_shown_and_not_obeyed(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**json.loads(CONFIG.read_text(encoding="utf-8")), field: FIELDS[field]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    folder = str(tmp_path)
    said(capsys, "check", "--", "vllm", "serve", folder)
    said(capsys, "check", "--json", "--", "vllm", "serve", folder)
    said(capsys, "advise", folder, "--method", "suffix", "--acceptance", "0.5")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_are_shown_and_not_obeyed(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in (HOSTILE, json.dumps({"method": HOSTILE, "num_speculative_tokens": 1})):
        for form in ((), ("--json",)):
            said(capsys, "check", *form, "--", "vllm", "serve", str(CONFIG.parent), option, value)


def test_a_refusal_of_vllm_serve_is_shown_and_not_obeyed() -> None:
    text = str(StartUpRefused(f"model_type is {HOSTILE}. Change: it."))
    assert len(text) < 4000
    assert "\x1b" not in text
    assert text.endswith("Change: it.")


@pytest.mark.parametrize("name", ["x" * 300, "x/" + "y" * 300, "y\0z", "/" + "x" * 5000])
def test_names_that_no_file_can_have_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = json.dumps({"model": name, "num_speculative_tokens": 1})
    target = str(CONFIG.parent)
    assert REFUSED in said(capsys, "check", "--", "vllm", "serve", name)
    given = ("check", "--", "vllm", "serve", target, "--speculative-config", draft)
    assert REFUSED in said(capsys, *given)
    advise = ("advise", target, "--draft", name, "--acceptance", "0.5")
    assert REFUSED in said(capsys, *advise)


def test_a_description_of_weights_may_name_any_layer(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five thousand digits are no number to Python."""
    name = f"model.layers.{'9' * 5000}.self_attn.k_proj.kv_cache_scale"
    described = {"kv_cache_type": "C8", name: "C8", "model.x.weight": "W8A8"}
    path = checkpoint / "quant_model_description.json"
    path.write_text(json.dumps(described), encoding="utf-8")
    said(capsys, "check", "--", "vllm", "serve", str(checkpoint))


@pytest.mark.parametrize("method", [["fp8"], {}, 7, None, True])
def test_a_method_of_quantisation_of_any_form_is_refused(
    method: object, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": method}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    command = ("advise", str(checkpoint), "--method", "suffix", "--acceptance", "0.5")
    assert REFUSED in said(capsys, *command)
    said(capsys, "check", "--", "vllm", "serve", str(checkpoint))


METRICS_FOLDER = """
import os
os.umask(0)
from mkv_ascend.metrics import Store, collect_from_workers, folder
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


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Each import, call and constant of the package: its file, and itself."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Constant)
    return [
        (str(path.relative_to(PACKAGE)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def test_nothing_of_ours_listens() -> None:
    """Ports are bound alone: of the loopback interface, so that a server of vLLM's own finds it
    free; and a server's own, to see whether it is."""
    servers = {"asyncio", "http.server", "socket", "socketserver", "uvicorn", "zmq"}
    found = set()
    for file, node in nodes():
        if isinstance(node, ast.Import):
            found |= {(file, alias.name) for alias in node.names if alias.name in servers}
        elif isinstance(node, ast.ImportFrom) and node.module in servers:
            found.add((file, node.module))
    asks = "adapters/vllm_ascend_0_23/patches/start_up.py"
    assert found == {(asks, "socket")}
    assert ".listen(" not in (PACKAGE / asks).read_text(encoding="utf-8")
    text = (PACKAGE.parent / "examples" / "demo" / "server.py").read_text(encoding="utf-8")
    assert text.count(".bind(") == text.count('holder.bind(("127.0.0.1", 0))') == 1
    assert ".listen(" not in text


def test_nothing_of_ours_evaluates_text_or_loads_pickles() -> None:
    forbidden = {"eval", "exec", "os.system", "tempfile.mktemp", "yaml.load", "yaml.unsafe_load"}
    forbidden |= {"torch.load", "pickle.load", "pickle.loads", "marshal.loads", "shelve.open"}
    called = {
        (file, ast.unparse(node.func)) for file, node in nodes() if isinstance(node, ast.Call)
    }
    assert not [(file, name) for file, name in called if name in forbidden]


def test_children_are_started_in_one_place() -> None:
    """Python looks into the current folder for ``-m``, ``-c``, and processes of multiprocessing."""
    words = {"-c", "-m", "spawn", "forkserver"}
    found = {
        (file, node.value)
        for file, node in nodes()
        if isinstance(node, ast.Constant) and node.value in words
    }
    # npu-smi is no Python.
    # command_words.py reads commands that have it.
    assert found == {
        ("child_process.py", "-c"),
        ("ops/chips.py", "-c"),
        ("commands/command_words.py", "-m"),
    }
