"""The settings of web search, MCP and fetching, and what is built from them."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from antiphon import bootstrap
from antiphon.config import Config, ConfigError, KeySettings, Secret, describe_config, load_config
from antiphon.hosted.addresses import AddressRules
from antiphon.hosted.fetching import HttpFetcher
from antiphon.hosted.mcp import SdkMcpConnector
from antiphon.hosted.searxng import SearxngSearch


def load(folder: Path, text: str, **environ: str) -> Config:
    path = folder / "antiphon.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(environ=environ, cwd=folder, file=path)


def read_rules(built: Any) -> AddressRules:
    rules = built._rules
    assert isinstance(rules, AddressRules)
    return rules


def test_without_settings_there_is_no_search_and_no_fetching_and_mcp_is_there(tmp_path: Path) -> None:
    """Ours: what calls out is off unless it is configured, or named by the request."""
    config = load(tmp_path, "")
    assert bootstrap._build_search(config) is None
    assert bootstrap._build_fetcher(config) is None
    assert isinstance(bootstrap._build_mcp_connector(config), SdkMcpConnector)


def test_search_is_built_with_its_key_and_the_key_is_not_shown(tmp_path: Path) -> None:
    """Ours: a secret stands in the environment."""
    text = '[search]\nurl = "http://localhost:8888/"\nkey_env = "SEARCH_KEY"\n'
    config = load(tmp_path, text, SEARCH_KEY="sesame-123")
    assert config.search.url == "http://localhost:8888"
    assert config.search.key == Secret("sesame-123")
    assert isinstance(bootstrap._build_search(config), SearxngSearch)
    assert "sesame" not in describe_config(config) + repr(config)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[search]\nurl = "localhost:8888"', "search.url"),
        ('[search]\nurl = "ftp://a"', "search.url"),
        ('[search]\nurl = "http://a:b@c"', "search.url"),
        ('[search]\nurl = "http://a/?q="', "search.url"),
        ('[search]\nkey_env = "SEARCH_KEY"', "search.key_env"),
        ('[mcp]\nprivate_addresses = "some"', "mcp.private_addresses"),
        ("[mcp]\ncall_timeout_s = 0", "mcp.call_timeout_s"),
        ("[fetch]\nmax_redirects = 21", "fetch.max_redirects"),
    ],
)
def test_a_wrong_setting_is_told_by_its_path(tmp_path: Path, text: str, path: str) -> None:
    """Ours: every problem has its path and a remedy."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize(
    ("setting", "has_keys", "private"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("allow", True, True),
        ("refuse", False, False),
    ],
)
def test_private_servers_may_be_called_while_nobody_else_is_there(
    tmp_path: Path, setting: str, has_keys: bool, private: bool
) -> None:
    """Ours: one person means the servers of this machine; a tenant must not reach them."""
    digest = hashlib.sha256(b"open").hexdigest()
    keys = f'[keys.one]\nsha256 = "{digest}"\n' if has_keys else ""
    config = load(tmp_path, f'{keys}[mcp]\nprivate_addresses = "{setting}"\nhosts = ["A.test:80"]\n')
    assert all(isinstance(key, KeySettings) for key in config.keys.values())
    connector = bootstrap._build_mcp_connector(config)
    rules = read_rules(connector)
    assert (rules.private, rules.hosts, rules.hosts_setting) == (private, ("a.test:80",), "mcp.hosts")


def test_mcp_can_be_switched_off(tmp_path: Path) -> None:
    """Ours: whoever runs the server decides."""
    assert bootstrap._build_mcp_connector(load(tmp_path, "[mcp]\nenabled = false\n")) is None


def test_images_are_fetched_from_public_addresses_and_named_hosts(tmp_path: Path) -> None:
    """Ours: no setting opens private addresses at large for images."""
    fetcher = bootstrap._build_fetcher(load(tmp_path, '[fetch]\nimages = true\nhosts = ["a.test"]\n'))
    assert isinstance(fetcher, HttpFetcher)
    rules = read_rules(fetcher)
    assert (rules.private, rules.hosts, rules.hosts_setting) == (False, ("a.test",), "fetch.hosts")


def test_lists_can_be_given_by_a_variable(tmp_path: Path) -> None:
    """Ours: every setting has a variable."""
    assert load(tmp_path, "", ANTIPHON_MCP__HOSTS="a.test, b.test:80").mcp.hosts == ("a.test", "b.test:80")
