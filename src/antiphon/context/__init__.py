"""What the model sees: facts about models, and (with the ladder) budget, plan and apply.

Pure: no I/O, no clock, no randomness; it reaches a model only through a callable that it is given.
"""

from antiphon.context.profiles import Profile

__all__ = ["Profile"]
