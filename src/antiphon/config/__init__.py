"""Configuration: flags, environment, TOML file and defaults, captured once into frozen structs.

The only reader of the environment. It knows names, types and cross-references, not what a setting does.
"""

from antiphon.config.gathering import ConfigError, Problem
from antiphon.config.loading import (
    UserFolders,
    find_user_folders,
    is_loopback,
    load_config,
    normalise_url,
    read_secret,
)
from antiphon.config.settings import (
    Config,
    EndpointSettings,
    KeySettings,
    Limits,
    LocalSettings,
    ModelSettings,
    Secret,
    ServeFacts,
    ServerSettings,
    StoreSettings,
)
from antiphon.config.showing import SETTINGS, Setting, describe_config, render_settings_markdown

__all__ = [
    "SETTINGS",
    "Config",
    "ConfigError",
    "EndpointSettings",
    "KeySettings",
    "Limits",
    "LocalSettings",
    "ModelSettings",
    "Problem",
    "Secret",
    "ServeFacts",
    "ServerSettings",
    "Setting",
    "StoreSettings",
    "UserFolders",
    "describe_config",
    "find_user_folders",
    "is_loopback",
    "load_config",
    "normalise_url",
    "read_secret",
    "render_settings_markdown",
]
