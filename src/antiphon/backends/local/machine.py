"""What the embedded model needs of this machine, and what to do where it is missing.

Without these looks the runtime ends by an illegal instruction or an obscure ImportError. It starts
nothing; what it looks at can be given, so that every machine can be asked about on every other.
"""

import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from antiphon.backends.local.errors import ModelError

#: How every model file of llama.cpp's form begins.
GGUF_MAGIC = b"GGUF"
RUNTIME_PACKAGE = "xllamacpp"
#: Instructions that the prebuilt runtime uses on x86-64 without asking (Haswell 2013 and newer).
CPU_FLAGS = ("avx2", "fma", "f16c", "bmi2")
#: The runtime's wheel leaves OpenMP to the system; slim images have none.
OPENMP_LIBRARY = "libgomp.so.1"
_ELSEWHERE = "Use another machine, or a model server elsewhere: antiphon serve --upstream URL."


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at; the defaults are this machine."""

    system: str = sys.platform
    processor: str = platform.machine()
    cpu_info: Path = Path("/proc/cpuinfo")
    cpu_folder: Path = Path("/sys/devices/system/cpu")
    #: Numbers of the logical processors that may be used; None: what the system lets this process use.
    processors: frozenset[int] | None = None
    #: Raises `OSError` where the library cannot be loaded.
    load_library: Callable[[str], object] = ctypes.CDLL
    #: None where there is no such package.
    find_package: Callable[[str], object] = importlib.util.find_spec


def find_missing(machine: Machine | None = None) -> str | None:
    """What keeps this machine from running the embedded model, with the remedy; None: nothing."""
    machine = machine or Machine()
    return _find_missing_flags(machine) or _find_missing_package(machine) or _find_missing_library(machine)


def _find_missing_flags(machine: Machine) -> str | None:
    if machine.system != "linux" or machine.processor not in ("x86_64", "AMD64"):
        return None
    flags = _read_flags(machine.cpu_info)
    if flags is None:
        return None
    missing = [flag for flag in CPU_FLAGS if flag not in flags]
    if not missing:
        return None
    return (
        f"This processor has no {', '.join(missing)}, which the embedded model's runtime uses. {_ELSEWHERE}"
    )


def _read_flags(path: Path) -> set[str] | None:
    """The first processor's flags; None where nothing can be told."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.strip() == "flags":
            return set(value.split())
    return None


def _find_missing_package(machine: Machine) -> str | None:
    if machine.find_package(RUNTIME_PACKAGE) is not None:
        return None
    return (
        f"The package {RUNTIME_PACKAGE}, which runs the embedded model, is not installed."
        " Install it: pip install 'xllamacpp>=2026.10.11549,<2027' (Linux with glibc on x86-64 or arm64, and macOS)."
        " Or use a model server: antiphon serve --upstream URL."
    )


def _find_missing_library(machine: Machine) -> str | None:
    if machine.system != "linux":
        return None
    try:
        machine.load_library(OPENMP_LIBRARY)
    except OSError:
        return (
            f"The library {OPENMP_LIBRARY}, which the embedded model's runtime uses, is missing. Install it:"
            " apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora, RHEL)."
        )
    return None


def count_cores(machine: Machine | None = None) -> int:
    """Physical cores that this process may use, where the system tells; else logical ones.

    Two threads on the halves of one core make a model slower, not faster.
    """
    machine = machine or Machine()
    if machine.system != "linux":
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0) if machine.processors is None else machine.processors
    cores = set()
    for number in usable:
        try:
            path = machine.cpu_folder / f"cpu{number}/topology/thread_siblings_list"
            cores.add(path.read_text(encoding="ascii").strip())
        except OSError:
            return len(usable)
    return len(cores) or 1


def check_model_file(path: Path) -> None:
    """Raise `ModelError` for a file that is no model, in words; the runtime would only print its log."""
    try:
        with path.open("rb") as file:
            start = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelError(f"The model file {path} cannot be read: {error.strerror}.") from error
    if start != GGUF_MAGIC:
        raise ModelError(
            f"{path} is no GGUF file, or not a whole one. Download it again, or give another with --model-file."
        )
