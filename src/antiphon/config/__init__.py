"""Configuration: flags, environment, TOML file and defaults, captured once into frozen structs.

The only reader of the environment. It knows names, types and cross-references, not what a setting does.
"""

from antiphon.config.compaction import CompactionSettings
from antiphon.config.gathering import ConfigError, Problem
from antiphon.config.loading import (
    UserFolders,
    find_user_folders,
    is_loopback,
    load_config,
    normalise_url,
    read_secret,
)
from antiphon.config.seal_keys import (
    SealKeyEntry,
    SealKeyError,
    list_seal_keys,
    load_seal_keys,
    locate_seal_keys,
    rotate_seal_keys,
)
from antiphon.config.settings import (
    Config,
    EndpointSettings,
    FetchSettings,
    KeySettings,
    Limits,
    LocalSettings,
    McpSettings,
    ModelSettings,
    SealSettings,
    SearchSettings,
    Secret,
    ServeFacts,
    ServerSettings,
    StoreSettings,
)
from antiphon.config.showing import SETTINGS, Setting, describe_config, render_settings_markdown

__all__ = [
    "SETTINGS",
    "CompactionSettings",
    "Config",
    "ConfigError",
    "EndpointSettings",
    "FetchSettings",
    "KeySettings",
    "Limits",
    "LocalSettings",
    "McpSettings",
    "ModelSettings",
    "Problem",
    "SealKeyEntry",
    "SealKeyError",
    "SealSettings",
    "SearchSettings",
    "Secret",
    "ServeFacts",
    "ServerSettings",
    "Setting",
    "StoreSettings",
    "UserFolders",
    "describe_config",
    "find_user_folders",
    "is_loopback",
    "list_seal_keys",
    "load_config",
    "load_seal_keys",
    "locate_seal_keys",
    "normalise_url",
    "read_secret",
    "render_settings_markdown",
    "rotate_seal_keys",
]
