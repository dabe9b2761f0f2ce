"""What an image costs in tokens: its size from its first bytes, and how each family of models bills one.

The table is by model name, since a model bills its images the same way behind any server. It opens nothing and
asks nobody. Invariant: every image costs something, also one whose size cannot be read.
"""

import base64
import binascii
import struct
from typing import Final, Literal

import msgspec

#: An image whose size cannot be read (it is named by a URL, or of another format) is taken for one of this size.
ASSUMED_SIZE: Final = (1024, 1024)
#: The sizes of all four formats stand in here, a camera's long notes before them included.
HEAD_BYTES: Final = 96 << 10


class Billing(msgspec.Struct, frozen=True):
    """How a family of models bills an image.

    `patches`: per square of `side` pixels, at most `cap` of them, times `factor`; `tiles`: `base` and `per_tile` for
    each of `side` pixels, after fitting the image; `flat`: `base`. `low` is the price of `detail: low`, if it has one.
    """

    kind: Literal["patches", "tiles", "flat"]
    side: int = 0
    cap: int = 0
    factor: float = 1.0
    base: int = 0
    per_tile: int = 0
    low: int | None = None
    #: The cap at `detail: original`.
    original_cap: int | None = None


#: For models that the table does not name: squares of 28 pixels, as most open models have them.
DEFAULT_BILLING: Final = Billing("patches", side=28, cap=4_096)
#: What a model's name holds -> its billing; the first that fits is taken.
BILLINGS: Final[tuple[tuple[str, Billing], ...]] = (
    ("claude-haiku", Billing("patches", side=28, cap=1_568)),
    ("claude-sonnet-4", Billing("patches", side=28, cap=1_568)),
    ("claude-3", Billing("patches", side=28, cap=1_568)),
    ("claude", Billing("patches", side=28, cap=4_784)),
    ("gemini-2", Billing("tiles", side=768, base=0, per_tile=258)),
    ("gemini", Billing("flat", base=1_120, low=280)),
    ("o4-mini", Billing("patches", side=32, cap=1_536, factor=1.72)),
    ("gpt-4.1-nano", Billing("patches", side=32, cap=1_536, factor=2.46)),
    ("gpt-5-nano", Billing("patches", side=32, cap=1_536, factor=2.46)),
    ("gpt-4.1-mini", Billing("patches", side=32, cap=1_536, factor=1.62)),
    ("gpt-5-mini", Billing("patches", side=32, cap=1_536, factor=1.62)),
    ("gpt-4o", Billing("tiles", side=512, base=85, per_tile=170, low=85)),
    ("gpt-4.1", Billing("tiles", side=512, base=85, per_tile=170, low=85)),
    ("gpt-5.", Billing("patches", side=32, cap=1_536, factor=1.2, original_cap=10_000)),
    ("gpt-5", Billing("tiles", side=512, base=70, per_tile=140, low=70)),
)
#: Tile billing fits an image into this square, then its short side to the second number.
_TILE_LONG_SIDE: Final = 2_048
_TILE_SHORT_SIDE: Final = 768


def find_billing(model: str) -> Billing:
    """How a model bills images: `"anthropic/claude-opus-5"` -> the row of `claude`."""
    name = model.lower()
    return next((billing for part, billing in BILLINGS if part in name), DEFAULT_BILLING)


def bill_image(url: str | None, detail: str | None, billing: Billing) -> int:
    """The tokens of one image, given by its data URL (any other URL tells no size)."""
    if detail == "low" and billing.low is not None:
        return billing.low
    if billing.kind == "flat":
        return billing.base
    width, height = (read_data_url_size(url) if url else None) or ASSUMED_SIZE
    if billing.kind == "tiles":
        return billing.base + billing.per_tile * _count_tiles(width, height, billing.side)
    cap = billing.original_cap if detail == "original" and billing.original_cap else billing.cap
    patches = min(_ceil(width, billing.side) * _ceil(height, billing.side), cap)
    return max(1, round(patches * billing.factor))


def _count_tiles(width: int, height: int, side: int) -> int:
    scale = min(1.0, _TILE_LONG_SIDE / max(width, height))
    scale *= min(1.0, _TILE_SHORT_SIDE / (min(width, height) * scale))
    return _ceil(max(1, int(width * scale)), side) * _ceil(max(1, int(height * scale)), side)


def _ceil(length: int, side: int) -> int:
    return -(-length // side)


def read_data_url_size(url: str) -> tuple[int, int] | None:
    """Width and height of the image in a base64 data URL; None when they cannot be read."""
    head, comma, _ = url[:256].partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    start = len(head) + 1
    encoded = url[start : start + HEAD_BYTES // 3 * 4]
    try:
        return read_image_size(base64.b64decode(encoded[: len(encoded) // 4 * 4]))
    except (binascii.Error, ValueError):
        return None


def read_image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the first bytes of a PNG, JPEG, GIF or WebP file; None for anything else."""
    try:
        size = _read_size(data)
    except (struct.error, IndexError):
        return None
    return size if size is not None and min(size) > 0 else None


def _read_size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data.startswith(b"\xff\xd8"):
        return _read_jpeg_size(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _read_webp_size(data)
    return None


def _read_jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        # A frame header (SOF0 to SOF15) holds the size; C4, C8 and CC are tables.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        (length,) = struct.unpack_from(">H", data, at + 2)
        at += 2 + max(length, 2)
    return None


def _read_webp_size(data: bytes) -> tuple[int, int] | None:
    form = data[12:16]
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if form == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8X":
        width = int.from_bytes(data[24:27], "little")
        height = int.from_bytes(data[27:30], "little")
        return width + 1, height + 1
    return None
