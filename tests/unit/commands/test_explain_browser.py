# SPDX-License-Identifier: Apache-2.0
"""The page of ``mkv-ascend explain`` in a browser: light, dark, and on paper."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.commands.plan_report import PlanReport, html
from mkv_ascend.layout.component import Component, LayerLayout, Storage, TokenExtent
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, plan
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind
from tests.support.chromium import needs_chromium, run_chromium
from tests.support.plan_reports import dense

TARGET, DRAFT = (0x2F, 0x6D, 0xB3), (0xC4, 0x66, 0x1F)

pytestmark = needs_chromium


def latent(layer: int) -> CachedLayer:
    """Of DeepSeek-V3."""
    parts = tuple(
        Component(name, "bfloat16", TokenExtent(128, 1, size))
        for name, size in (("latent", 512), ("rope", 64))
    )
    name, size = f"model.layers.{layer}.self_attn.attn", sum(one.bytes_per_block for one in parts)
    layout = LayerLayout(name, Role.TARGET, Kind.MLA, parts, Storage.SPLIT, size, 128, 128)
    return CachedLayer(layout, Retention(RetentionKind.ALL), "mla")


def of_draft(layer: int) -> CachedLayer:
    """Of gpt-oss-20b."""
    kept = Retention(RetentionKind.ALL)
    kind = Kind.FULL_ATTENTION
    if layer % 2 == 0:
        kept, kind = Retention(RetentionKind.WINDOW, 128), Kind.SLIDING_WINDOW
    layout = dense(f"draft_model.model.layers.{layer}.attn.attn", Role.DRAFT, 8, kind)
    return CachedLayer(layout, kept, "fused_infer_attention")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    layers = (*map(latent, range(61)), *map(of_draft, range(24)))
    inputs = PlanInputs(layers, Request(163840, 4), 2048)
    subjects = (("target", "DeepSeek-V3"), ("draft", "gpt-oss-20b"))
    file = tmp_path / "plan.html"
    file.write_text(html(PlanReport(subjects=subjects, planned=plan(inputs))), encoding="utf-8")
    return file


@pytest.mark.parametrize("options", [(), ("--force-dark-mode",)], ids=["light", "dark"])
def test_both_models_are_seen(page: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    run_chromium(page, tmp_path, f"--screenshot={shot}", *options)
    with Image.open(shot) as picture:
        image = picture.convert("RGB")
    ground = image.getpixel((2, 2))
    assert isinstance(ground, tuple)
    assert max(ground) < 64 if options else min(ground) == 255
    pixels = {color: number for number, color in image.getcolors(maxcolors=2**24)}
    # Bars 16 pixels high: the target's group, and the draft's two.
    assert pixels.get(TARGET, 0) > 3_000
    assert pixels.get(DRAFT, 0) > 3_000


MEASURE = """<script>
const wide = [...document.querySelectorAll("main *")].filter(
  (e) => e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.tagName);
const small = [...document.querySelectorAll("p, td")].filter(
  (e) => parseFloat(getComputedStyle(e).fontSize) < 13).map((e) => e.tagName);
const root = document.documentElement;
document.title = JSON.stringify({page: root.scrollWidth, window: innerWidth, wide, small});
</script></body>"""


def measured(page: Path, folder: Path, width: int) -> dict[str, Any]:
    """What a browser of this width makes of the page; the page itself has no script."""
    text = page.read_text(encoding="utf-8")
    # Headless windows are 500 pixels wide or more; a frame may be narrower.
    inner = folder / "inner.html"
    inner.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    outer = folder / "outer.html"
    outer.write_text(
        f"""<!DOCTYPE html><title></title><iframe src="{inner.as_uri()}" width="{width}"
        height="900" style="border: 0" onload="document.title = 'loaded'"></iframe>
        <script>onload = () => {{ const f = document.querySelector("iframe");
        document.body.dataset.found = f.contentDocument.title; }}</script>""",
        encoding="utf-8",
    )
    dumped = run_chromium(outer, folder, "--dump-dom", "--allow-file-access-from-files")
    found = re.findall(r'data-found="([^"]*)"', dumped)
    result: dict[str, Any] = json.loads(unescape(found[0]))
    return result


@pytest.mark.parametrize("width", [400, 720, 920, 1200])
def test_it_can_be_read_on_a_narrow_screen(page: Path, tmp_path: Path, width: int) -> None:
    """Nothing is wider than the screen, and no words become small."""
    found = measured(page, tmp_path, width)
    assert found["window"] == width
    assert found["page"] <= width
    assert (found["wide"], found["small"]) == ([], [])


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "plan.pdf"
    run_chromium(page, tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")
    assert paper.stat().st_size > 10_000
