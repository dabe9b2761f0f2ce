"""What can go wrong with a model's file, by who must act.

ModelError               the embedded model cannot be had or used
├── UnknownModelError        the table has no such model: choose another name
├── StorageError             the cache folder cannot take it: free space, or name another folder
└── SourceError              one source did not deliver: another may

Every message says what to do.
"""

from antiphon.protocol.errors import AntiphonError


class ModelError(AntiphonError):
    """The embedded model cannot be had."""


class UnknownModelError(ModelError):
    """The table has no such model."""


class StorageError(ModelError):
    """The model cache cannot be written."""


class SourceError(ModelError):
    """A source did not deliver the model."""
