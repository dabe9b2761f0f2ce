"""The manifest of requirements, one probe each: the product, and our own conformance suite."""

from antiphon.checker.requirements.manifest import MANIFEST, select_requirements
from antiphon.checker.requirements.requirement import Probe, Requirement

__all__ = ["MANIFEST", "Probe", "Requirement", "select_requirements"]
