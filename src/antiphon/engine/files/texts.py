"""The text in bytes.

Pure. Invariant: what is no text is refused, never guessed at: a text is in UTF-8, begins with a byte order mark,
or comes with the name of its charset.
"""

import codecs
import encodings
from encodings.aliases import aliases

import msgspec

from antiphon.engine.files.unreadable import UnreadableFileError

#: The most text of one file, in characters; as long as the API's longest text.
FILE_TEXT_CHARS = 10_485_760
#: No encoding takes more bytes for a character of Unicode.
_BYTES_PER_CHAR = 4
_BOMS = (
    # The longer ones first: the mark of UTF-32 begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf_32"),
    (codecs.BOM_UTF32_BE, "utf_32"),
    (codecs.BOM_UTF8, "utf_8_sig"),
    (codecs.BOM_UTF16_LE, "utf_16"),
    (codecs.BOM_UTF16_BE, "utf_16"),
)
#: Charsets that a sender may name, as Python's modules are called. It has more, of which some take time that grows
#: with the square of the length.
_CHARSET_NAMES = (
    "ascii utf_8 utf_8_sig utf_16 utf_16_le utf_16_be utf_32 utf_32_le utf_32_be big5 big5hkscs cp437 cp850 cp866 "
    "cp932 cp949 cp950 euc_jp euc_kr gb18030 gb2312 gbk iso2022_jp koi8_r koi8_u latin_1 mac_roman shift_jis "
    "iso8859_1 iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 iso8859_10 "
    "iso8859_11 iso8859_13 iso8859_14 iso8859_15 iso8859_16 "
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258"
)
_CHARSETS = frozenset(_CHARSET_NAMES.split())


class FileText(msgspec.Struct, frozen=True):
    """The text of a file. `pages` is 0 where there are none; `blank_pages` are numbered from 1."""

    text: str
    pages: int = 0
    blank_pages: tuple[int, ...] = ()


def check_length(length_bytes: int) -> None:
    """Raise when so many bytes cannot be a text that is short enough."""
    if length_bytes > FILE_TEXT_CHARS * _BYTES_PER_CHAR:
        raise _make_too_long()


def decode_text(content: bytes, charset: str | None) -> str:
    """The text in some bytes, without a byte order mark; raises `UnreadableFileError` when it is none."""
    encoding = next((name for mark, name in _BOMS if content.startswith(mark)), None) or _find_codec(charset)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        named = encoding.replace("_", "-").upper()
        reason = f"the file is no text in {named} (byte {error.start})"
        if charset is None:
            reason += (
                "; if it is text, name its charset in the data URL (data:text/plain;charset=...;base64,...)"
            )
        raise UnreadableFileError(reason) from error
    if "\0" in text:
        raise UnreadableFileError("the file is no text: it holds zero bytes")
    if len(text) > FILE_TEXT_CHARS:
        raise _make_too_long()
    return text


def _find_codec(charset: str | None) -> str:
    if charset is None:
        return "utf_8"
    # Not `codecs.lookup`, which remembers every name that it is asked for, known or not.
    name = encodings.normalize_encoding(charset.lower())
    name = aliases.get(name, name)
    if name not in _CHARSETS:
        raise UnreadableFileError(f"the charset '{charset}' of the data URL is not known here; send UTF-8")
    return name


def _make_too_long() -> UnreadableFileError:
    return UnreadableFileError(
        f"the file has more than {FILE_TEXT_CHARS} characters of text; send the parts that matter"
    )
