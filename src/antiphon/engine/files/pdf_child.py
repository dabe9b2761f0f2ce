"""The program of the child process: a PDF on standard input, its text on standard output.

Run as a file, without the rest of the package: `pdf_child.py FOLDER PAGES CHARS CPU_S MEMORY_BYTES`, where
FOLDER holds pypdf. Says one line of JSON, then the text of the pages with form feeds between. Invariant: the
kernel ends it when it takes more time or memory than it was given; any other failure ends it with a traceback.
"""

import io
import json
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

#: What no text has: control characters but tab and line feed, and halves of characters.
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def main(arguments: list[str]) -> None:
    """Read, limit, extract, answer."""
    folder, *numbers = arguments
    pages, chars, cpu_s, memory_bytes = map(int, numbers)
    sys.path.append(folder)
    # Loaded before the limits hold, which are meant for the file.
    import pypdf

    _limit(resource.RLIMIT_CPU, cpu_s)
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        answer, text = extract(pypdf, sys.stdin.buffer.read(), pages, chars)
    except (MemoryError, pypdf.errors.LimitReachedError):
        # The library has limits of its own for what a stream may unpack to.
        answer, text = {"failure": "memory"}, ""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + text.encode())


def extract(pypdf: Any, data: bytes, most_pages: int, most_chars: int) -> tuple[dict[str, Any], str]:
    """What to answer: `({"pages": n}, text)`, or `({"failure": why}, "")`."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        # Many files are encrypted with the empty password, and open without asking.
        if reader.is_encrypted and not reader.decrypt(""):
            return {"failure": "encrypted"}, ""
    except pypdf.errors.DependencyError:
        return {"failure": "encrypted"}, ""
    count = len(reader.pages)
    if count > most_pages:
        return {"failure": "pages", "pages": count}, ""
    texts = []
    length = 0
    for text in _iter_texts(reader):
        length += len(text)
        if length > most_chars:
            return {"failure": "chars"}, ""
        texts.append(text)
    return {"pages": count}, "\f".join(texts)


def _iter_texts(reader: Any) -> Iterator[str]:
    for page in reader.pages:
        yield _UNWANTED.sub("", page.extract_text().replace("\r\n", "\n").replace("\r", "\n")).strip()


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(kind, (most, most))
    except (ValueError, OSError):
        # macOS takes no limit of memory; there the time alone bounds it.
        return


if __name__ == "__main__":
    main(sys.argv[1:])
