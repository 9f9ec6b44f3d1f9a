# SPDX-License-Identifier: Apache-2.0
"""Both distributions, built as for a package index, and environments with little in them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import mkv_ascend

ROOT = Path(mkv_ascend.__file__).resolve().parents[1]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
TOOLS = Path(sys.executable).parent
HANG_SECONDS = 600


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command, with these environment variables and none of ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MKV_ASCEND_", "EMULATED_NPU_", "PYTHON"))
    }
    return subprocess.run(
        [str(word) for word in command],
        env={**kept, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def tracked(folder: str) -> list[str]:
    """Files of the repository below ``folder``, relative to it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT / folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / folder / name).exists()]


def copy_of_the_repository(folder: Path) -> Path:
    """What is tracked, and nothing that an earlier build left."""
    for name in tracked("."):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    return folder


@dataclass(frozen=True)
class Built:
    """The source distribution of a project, and the wheel that was built from it."""

    sdist: Path
    wheel: Path

    def wheel_files(self) -> set[str]:
        """What the wheel installs, its own metadata left out."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info" not in name.split("/")[0]}

    def metadata(self) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return archive.read(name).decode()

    def sdist_members(self) -> dict[str, tarfile.TarInfo]:
        """Members of the source distribution by their path below its folder."""
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2]: member for member in archive.getmembers()}


def build(project: Path, output: Path) -> Built:
    """Build the source distribution, and the wheel from that alone, without native parts."""
    finished = run(
        *(TOOLS / "uv", "build", "--quiet", "--no-build-isolation", "--offline"),
        *("--python", sys.executable, "--out-dir", output, project),
        MKV_ASCEND_BUILD_OPS="0",
        EMULATED_NPU_BUILD="0",
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (sdist,), (wheel,) = output.glob("*.tar.gz"), output.glob("*.whl")
    return Built(sdist, wheel)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has what is put into it and nothing else."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / "bin"

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, wheel: Path) -> None:
        """Install a wheel without what it depends on."""
        where = ("--python", self.scripts / "python", "--no-index", "--no-deps", "--quiet")
        finished = run(TOOLS / "uv", "pip", "install", *where, wheel)
        assert finished.returncode == 0, finished.stderr

    def lend(self, leaving_out: tuple[str, ...]) -> None:
        """Link what is installed here, but what begins with one of these names."""
        for path in SITE_PACKAGES.iterdir():
            name = path.name.removeprefix("__editable__.").replace("__editable___", "")
            here = self.site_packages / path.name
            if not (name.startswith(leaving_out) or path.suffix == ".pth" or here.exists()):
                here.symlink_to(path)

    def lend_only(self, *names: str) -> None:
        """Link these modules or folders of what is installed here."""
        for name in names:
            if (SITE_PACKAGES / name).exists():
                (self.site_packages / name).symlink_to(SITE_PACKAGES / name)


def make_environment(folder: Path) -> Environment:
    """A bare virtual environment."""
    finished = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert finished.returncode == 0, finished.stderr
    return Environment(folder)
