"""The distributions: the source one builds the wheel, which, alone in an environment, runs and moves cache."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MATURIN = Path(sys.executable).with_name("maturin")

pytestmark = pytest.mark.skipif(
    not MATURIN.exists(), reason="no maturin beside this interpreter; `make test` installs it"
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([MATURIN, "sdist", "--out", folder], cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        archive.extractall(folder)
    return folder / found.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from nothing but the source distribution; compiled dependencies serve again."""
    folder = tmp_path_factory.mktemp("dist")
    command: list[str | Path] = [MATURIN, "build", "--release", "--locked", "--quiet", "--out", folder]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target")}
    subprocess.run(command, cwd=sdist, env=environment, check=True, timeout=900)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose own packages are the wheel alone. Others are lent, so that nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run([str(part) for part in install], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A folder named in a .pth file comes after the environment's own, and its own .pth files are not read.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command: list[str | Path] = [python, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=python.parent, env=environment, timeout=170, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.timeout(1000)
def test_the_wheel_has_everything(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT / "python").as_posix()
        for path in (ROOT / "python" / "kvreshard").rglob("*")
        if path.is_file() and path.suffix in (".py", ".pyi", ".typed", ".j2")
    }
    assert package <= names
    assert "-cp310-abi3-" in wheel.name


def test_it_is_the_wheel_that_runs(python: Path) -> None:
    where = run(python, "-c", "import kvreshard; print(kvreshard.__file__)").strip()
    assert Path(where).is_relative_to(python.parents[1])


def test_the_command_is_installed(python: Path) -> None:
    done = subprocess.run([python.with_name("kvreshard"), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


def test_the_smallest_demonstration_runs(python: Path) -> None:
    pytest.importorskip("nixl")
    said = run(python, "-m", "kvreshard.demo", "aiter-1-2", "--layers", "2", "--tokens", "32")
    assert said.rstrip().endswith("all as it must be")


def test_the_source_distribution_has_what_it_builds_from(sdist: Path) -> None:
    names = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*")}
    wanted = ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "pyproject.toml", "python/kvreshard/__init__.py"]
    wanted += [path.relative_to(ROOT).as_posix() for path in (ROOT / "crates").glob("*/src/**/*.rs")]
    assert set(wanted) <= names
