"""Antiphon keeps the conversation for any language model."""

__version__ = "0.1.0"
