"""The embedded model: the table of models, their files, and the llama.cpp server that runs one."""

from antiphon.backends.local.cache import ModelCache, ModelRow
from antiphon.backends.local.download import DownloadSettings, Progress, Report, render_bytes
from antiphon.backends.local.errors import ModelError, SourceError, StorageError, UnknownModelError
from antiphon.backends.local.table import (
    DEFAULT_MODEL,
    MODELS,
    SOURCE_KINDS,
    LocalModel,
    find_model,
    locate_licence,
)

__all__ = [
    "DEFAULT_MODEL",
    "MODELS",
    "SOURCE_KINDS",
    "DownloadSettings",
    "LocalModel",
    "ModelCache",
    "ModelError",
    "ModelRow",
    "Progress",
    "Report",
    "SourceError",
    "StorageError",
    "UnknownModelError",
    "find_model",
    "locate_licence",
    "render_bytes",
]
