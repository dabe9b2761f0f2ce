"""Files and images in requests: what kind one is, and its text. They know no items.

Text is decoded here; a PDF is read by a child process, which can be killed.
"""

from antiphon.engine.files.forms import FileForm, find_form, show_name
from antiphon.engine.files.images import DATA_URL_HINT, check_image, make_image_url
from antiphon.engine.files.pdf import PdfExtractor, PdfLimits
from antiphon.engine.files.reading import FileReader
from antiphon.engine.files.texts import FILE_TEXT_CHARS, FileText
from antiphon.engine.files.unreadable import ContentError, FilesBusyError, UnreadableFileError

__all__ = [
    "DATA_URL_HINT",
    "FILE_TEXT_CHARS",
    "ContentError",
    "FileForm",
    "FileReader",
    "FileText",
    "FilesBusyError",
    "PdfExtractor",
    "PdfLimits",
    "UnreadableFileError",
    "check_image",
    "find_form",
    "make_image_url",
    "show_name",
]
