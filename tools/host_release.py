# SPDX-License-Identifier: Apache-2.0
"""Releases of vllm-ascend and torch_npu, fetched with pip by their hashes, not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "hosts"
SECONDS = 600


class FetchError(RuntimeError):
    """The release could not be fetched; the message says why, and what to do."""


@dataclass(frozen=True)
class Release:
    """One file of a release on the package index, and what pip is to look for.

    vllm-ascend has source archives alone.
    """

    requirement: str
    sha256: str
    options: tuple[str, ...] = ("--no-build-isolation", "--no-binary", "vllm-ascend")
    suffix: str = ".tar.gz"


RELEASES = {
    "0.23.0.post1": Release(
        "vllm-ascend==0.23.0.post1",
        "a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1",
    )
}
TORCH_NPU = Release(
    "torch-npu==2.10.0.post4",
    "7d88428d9bb8473919a38947617fcc481cb6e28927a8aa30e486a9bc42f30d90",
    # The same file on any machine: it is read alone.
    (
        *("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"),
        *("--platform", "manylinux_2_28_x86_64"),
    ),
    ".whl",
)
"""What vllm-ascend 0.23.0 and 0.30.0rc2 both require."""


def fetch(version: str, cache: Path = CACHE) -> Path:
    """The folder that holds ``vllm_ascend/`` of this release; fetched once.

    Raises:
        FetchError: the release is unknown, the index cannot be reached, or the archive is not the
            one that is pinned here.
    """
    if version not in RELEASES:
        raise FetchError(f"{version} is asked for; known are {', '.join(RELEASES)}")
    release = RELEASES[version]
    kept = cache / f"vllm_ascend-{version}-{release.sha256[:12]}"
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            archive = _download(release, Path(folder))
            unpacked = Path(folder) / "unpacked"
            _unpack(archive, unpacked)
            shutil.move(unpacked, kept)
    return kept


def torch_npu_wheel(cache: Path = CACHE) -> Path:
    """The wheel of torch_npu; fetched once. Errors: FetchError, as of ``fetch``."""
    for kept in (cache / TORCH_NPU.sha256[:12]).glob("*.whl"):
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheel = _download(TORCH_NPU, Path(folder))
        kept = cache / TORCH_NPU.sha256[:12] / wheel.name
        kept.parent.mkdir(exist_ok=True)
        shutil.move(wheel, kept)
    return kept


def _download(release: Release, folder: Path) -> Path:
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{release.requirement} --hash=sha256:{release.sha256}\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", *release.options, "--require-hashes"),
        *("--requirement", str(pinned), "--dest", str(folder)),
    ]
    # Its set-up is run for its metadata alone; it asks for a chip and would compile kernels.
    environment = {**os.environ, "SOC_VERSION": "ascend910b1", "COMPILE_CUSTOM_KERNELS": "0"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not fetch {release.requirement} within {SECONDS} s") from error
    archives = list(folder.glob(f"*{release.suffix}"))
    if done.returncode or not archives:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchError(
            f"pip could not fetch {release.requirement}: {(said or [done.stderr[-300:]])[-1]}. "
            "A package index must be reachable; without one name an unpacked archive (--host) or a "
            "file (--wheel)"
        )
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    """The Python sources of the package alone."""
    with tarfile.open(archive) as files:
        for member in files:
            path = Path(*Path(member.name).parts[1:])
            inside = path.parts[:1] == ("vllm_ascend",) and ".." not in path.parts
            content = files.extractfile(member) if member.isfile() else None
            if inside and path.suffix == ".py" and content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content.read())
