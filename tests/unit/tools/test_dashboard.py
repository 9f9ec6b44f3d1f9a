# SPDX-License-Identifier: Apache-2.0
"""The dashboard of docs/dashboards asks for metrics that exist, and its queries have answers.

Where ``prometheus`` and ``promtool`` are installed (Debian's package ``prometheus``), they judge a
page that ``vllm serve`` showed on the emulated NPU. CI does not have them.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mkv_ascend.commands.demo_server import reserved_port
from mkv_ascend.metrics import definitions

REPOSITORY = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((REPOSITORY / "docs/dashboards/mkv_ascend.json").read_text())
PAGE = Path(__file__).with_name("metrics_page.txt")
"""Of vLLM 0.23.0 with gemma3 and a draft of it, three texts of 24 tokens; its name shortened."""
NAME = re.compile(r"\b(?:vllm:|mkv_ascend_)[a-z_]+")
OURS = {metric.name: metric for metric in definitions.METRICS}
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
installed = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="prometheus and promtool are not installed (Debian: apt-get install prometheus)",
)


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def names_of_vllm() -> set[str]:
    """Names in the sources of the installed vLLM, whose counters are written without ``_total``."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0], "v1")
    sources = [*folder.glob("metrics/*.py"), folder / "spec_decode/metrics.py"]
    return {name for path in sources for name in NAME.findall(path.read_text())}


def test_every_metric_is_one_that_we_or_vllm_export() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    theirs = names_of_vllm()
    for name in asked:
        assert name in OURS or name.removesuffix("_total") in theirs, name
    assert set(OURS) <= asked, "a metric that no panel shows"


def test_the_page_that_queries_are_tried_on_has_every_metric_with_its_labels() -> None:
    families = text_string_to_metric_families(PAGE.read_text())
    samples = [sample for family in families for sample in family.samples]
    found = {sample.name: set(sample.labels) for sample in samples}
    for metric in definitions.METRICS:
        assert found[metric.name] == {*definitions.COMMON_LABELS, *metric.labels}
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked <= set(found)


@installed
def test_promtool_has_no_complaint_about_our_metrics() -> None:
    with PAGE.open() as page:
        command = [str(PROMTOOL), "check", "metrics"]
        done = subprocess.run(command, stdin=page, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert [line for line in said if not line.startswith("vllm:")] == []


class Growing(http.server.BaseHTTPRequestHandler):
    """The page, with counters that grow each time it is asked for."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        lines = []
        for line in PAGE.read_text().splitlines():
            if "_total{" in line:
                name, _, value = line.rpartition(" ")
                line = f"{name} {float(value) * self.asked}"
            lines.append(line)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("\n".join(lines) + "\n").encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """The address of a Prometheus that reads the page each second."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Growing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: vllm, static_configs: "
        f"[{{targets: ['127.0.0.1:{server.server_port}']}}]}}]\n"
    )
    try:
        with reserved_port() as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
            with _reading(config, folder, address):
                yield f"http://{address}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def _reading(config: Path, folder: Path, address: str) -> Iterator[None]:
    command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address={address}")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def answer(address: str, expression: str) -> list[Any]:
    """What Prometheus answers; an error of the query is an exception."""
    for variable, value in {"$__rate_interval": "30s", "$model_name": ".*"}.items():
        expression = expression.replace(variable, value)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = urllib.parse.urlencode({"query": expression})
    with direct.open(f"{address}/api/v1/query?{query}", timeout=10) as found:
        result: list[Any] = json.load(found)["data"]["result"]
    return result


@installed
def test_every_query_has_an_answer(tmp_path: Path) -> None:
    with prometheus(tmp_path) as address:
        deadline = time.monotonic() + 60
        while Growing.asked < 5 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert Growing.asked >= 5, (tmp_path / "log").read_text()
        time.sleep(1.5)  # what was asked for last is stored by then
        answers = {expression: answer(address, expression) for expression in expressions()}
        page = (REPOSITORY / "docs/metrics.md").read_text()
        (examples,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
        documented = [part.replace("[5m]", "[30s]") for part in examples.strip().split("\n\n")]
        assert all(answer(address, query) for query in documented)
    assert [expression for expression, found in answers.items() if not found] == []
    for expression, found in answers.items():
        numbers = [float(series["value"][1]) for series in found]
        assert all(0 <= number < float("inf") for number in numbers), expression
    (share,) = (found for expression, found in answers.items() if 'mode="replayed"' in expression)
    assert float(share[0]["value"][1]) == pytest.approx(24 / 27)
