"""Peers as they are published: Debian's packages and Python's, unpacked into the cache. Nothing is installed on the system."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


class Unavailable(Exception):
    """A peer that cannot be measured here; the message is the reason."""


def cache_dir() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "vllm-mm" / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def from_debian(cache: Path, name: str, *libraries: str) -> tuple[str, dict[str, str]]:
    """The system's program, or the one of Debian's package `name`, with packages of libraries that it wants; and what its
    environment needs."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is not None:
        return found, {}
    root = cache / name
    binary = root / "usr" / "sbin" / name
    if not binary.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unavailable(f"{name} is not installed, and this is no Debian to get it from")
        for package in (name, *libraries):
            got = subprocess.run(
                ["apt-get", "download", package], cwd=cache, capture_output=True, text=True, check=False
            )
            archives = sorted(cache.glob(f"{package}_*.deb"))
            if got.returncode or not archives:
                raise Unavailable(f"apt-get download {package}: {got.stderr.strip()[-300:]} (apt-get update first?)")
            subprocess.run(["dpkg-deb", "-x", str(archives[-1]), str(root)], check=True)
    env = {"LD_LIBRARY_PATH": ":".join(str(p) for p in root.glob("usr/lib/*-linux-gnu"))} if libraries else {}
    works = subprocess.run([str(binary), "-v"], capture_output=True, text=True, check=False, env={**os.environ, **env})
    if works.returncode:
        raise Unavailable(f"{name} does not run: {works.stderr.strip()[-300:]}")
    return str(binary), env


def from_pypi(cache: Path, requirement: str, command: str) -> Path:
    """The command of a package in an environment of its own."""
    home = cache / requirement.replace("==", "-").replace("[", "-").replace("]", "")
    binary = home / "bin" / command
    if not binary.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(home)], capture_output=True, text=True, check=False)
        if not made.returncode:
            install = [str(home / "bin" / "pip"), "install", "-q", requirement]
            made = subprocess.run(install, capture_output=True, text=True, check=False)
        if made.returncode or not binary.exists():
            shutil.rmtree(home, ignore_errors=True)
            raise Unavailable(f"pip install {requirement}: {made.stderr.strip()[-300:]}")
    return binary
