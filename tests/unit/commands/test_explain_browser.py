# SPDX-License-Identifier: Apache-2.0
"""The page of ``mkv-ascend explain`` in a browser: light, dark, and on paper."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import transformers  # noqa: F401  So that defaults of configs are asked for in this process.

import browser
from mkv_ascend import cli
from mkv_ascend.testing.programs import HANG_SECONDS

CONFIGS = Path(__file__).resolve().parents[2] / "data" / "configs"
CHROMIUM = browser.find()
LIGHT, LIGHT_TARGET, LIGHT_DRAFT = (255, 255, 255), (0x2F, 0x6D, 0xB3), (0xC4, 0x66, 0x1F)
DARK, DARK_TARGET, DARK_DRAFT = (0x14, 0x18, 0x1D), (0x6E, 0xA8, 0xE6), (0xE9, 0x97, 0x5A)


def why_absent() -> str:
    """What the set-up of a browser said, where it was tried."""
    note = browser.ROOT / browser.REASON
    said = note.read_text(encoding="utf-8").strip() if note.is_file() else "run tools/browser.py"
    return f"none of {', '.join(browser.NAMES)} on the PATH: {said}"


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=why_absent())


def run_chromium(page: Path, folder: Path, *options: str) -> None:
    """Show ``page`` without a network and without what a browser does on its own."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command += ["--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1240,1500"]
    done = subprocess.run(
        [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "plan.html"
    options = ["--model", str(CONFIGS / "DeepSeek-V3"), "--draft", str(CONFIGS / "gpt-oss-20b")]
    options += ["--format", "html", "--output", str(file), "--no-vllm-grouping"]
    assert cli.main(["explain", *options]) == 0
    return file


@pytest.mark.parametrize(
    ("options", "ground", "target", "draft"),
    [
        ((), LIGHT, LIGHT_TARGET, LIGHT_DRAFT),
        (("--force-dark-mode",), DARK, DARK_TARGET, DARK_DRAFT),
    ],
    ids=["light", "dark"],
)
def test_both_models_are_seen(
    page: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    ground: tuple[int, int, int],
    target: tuple[int, int, int],
    draft: tuple[int, int, int],
) -> None:
    from PIL import Image

    shot = tmp_path / "shot.png"
    run_chromium(page, tmp_path, f"--screenshot={shot}", *options)
    with Image.open(shot) as picture:
        image = picture.convert("RGB")
    assert image.getpixel((2, 2)) == ground
    pixels = {color: number for number, color in image.getcolors(maxcolors=2**24)}
    # 61 latents of the target and 24 caches of the draft, each some tens of pixels wide.
    assert pixels.get(target, 0) > 20_000
    assert pixels.get(draft, 0) > 10_000


def test_a_layer_in_focus_is_marked_and_described(page: Path, tmp_path: Path) -> None:
    from PIL import Image, ImageChops

    shots = []
    text = page.read_text(encoding="utf-8")
    focused = text.replace(
        '<g class="layer draft" tabindex', '<g class="layer draft" autofocus="" tabindex', 1
    )
    assert focused != text
    for name, content in (("plain", text), ("focused", focused)):
        page.write_text(content, encoding="utf-8")
        shot = tmp_path / f"{name}.png"
        run_chromium(page, tmp_path, f"--screenshot={shot}")
        with Image.open(shot) as picture:
            shots.append(picture.convert("RGB"))
    changed = ImageChops.difference(*shots).getbbox()
    assert changed is not None
    left, top, right, bottom = changed
    # A line of text under the bars, and a frame around the layer above it.
    assert right - left > 300
    assert 35 < bottom - top < 80


def test_it_can_be_printed(page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "plan.pdf"
    run_chromium(page, tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    assert paper.read_bytes().startswith(b"%PDF")
    assert paper.stat().st_size > 10_000
