"""Which addresses may be called on a client's behalf, and which of them a host name stands for.

It opens no connection. Invariant: every address that `resolve` gives was checked, and one bad address refuses the
whole name; whoever connects, connects to exactly these, so a name cannot change its meaning in between.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
#: The seam to name resolution: host and port -> addresses as text, in the order to try them.
Lookup: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

#: No more addresses of one name are tried.
MAX_ADDRESSES = 4
#: Where clouds serve credentials to their own machines, in a range that is otherwise merely private.
_METADATA: Final = frozenset({ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")})
#: IPv6 addresses that carry an IPv4 address in their last 32 bits.
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
#: IPv6 addresses that some networks lead to an IPv4 address, and nobody gives to a server: the compatible ones of
#: RFC 4291, the translated ones of RFC 2765, and the local translation prefix of RFC 8215.
_DISUSED: Final = tuple(map(ipaddress.ip_network, ("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48")))
_LOOPBACK: Final = ipaddress.ip_address("::1")


class AddressError(Exception):
    """A host that may not be called or is not known; the text is a sentence about it."""


class AddressRules(msgspec.Struct, frozen=True, kw_only=True):
    """What may be called. Public addresses may, others by these rules; link-local and multicast never.

    With `hosts`, only these (`name` or `name:port`) may be called; being named, they may be private.
    """

    private: bool = False
    hosts: tuple[str, ...] = ()
    #: The settings that whoever runs the server can change: for the hosts, and for private addresses.
    hosts_setting: str = ""
    private_setting: str = ""


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses of a host by the system's resolver; raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def resolve(host: str, port: int, rules: AddressRules, lookup: Lookup = look_up) -> list[str]:
    """The addresses to connect to for this host, all of them allowed; raises `AddressError`."""
    host = host.strip("[]").rstrip(".").lower()
    is_named = host in rules.hosts or f"{host}:{port}" in rules.hosts
    if rules.hosts and not is_named:
        raise AddressError(
            "its host is not among those that this server may call" + _name(rules.hosts_setting)
        )
    try:
        addresses = [str(ipaddress.ip_address(host))]
    except ValueError:
        try:
            addresses = list(await lookup(host, port))
        except (OSError, UnicodeError) as error:
            raise AddressError("its host name is not known") from error
    if not addresses:
        raise AddressError("its host name is not known")
    for address in addresses:
        _check(address, rules, may_be_private=rules.private or is_named)
    return addresses[:MAX_ADDRESSES]


def _name(setting: str) -> str:
    return f" (see the setting {setting})" if setting else ""


def _check(address: str, rules: AddressRules, *, may_be_private: bool) -> None:
    try:
        found = _unwrap(ipaddress.ip_address(address))
    except ValueError:
        raise AddressError("its address cannot be read") from None
    special = found.is_link_local or found.is_multicast or found.is_unspecified or found in _METADATA
    if special or (found != _LOOPBACK and any(found in network for network in _DISUSED)):
        raise AddressError("its address is link-local, multicast or otherwise special, and is never called")
    if not found.is_global and not may_be_private:
        raise AddressError(
            "its address is private, and this server does not call private addresses"
            + _name(rules.private_setting)
        )


def _unwrap(address: IpAddress) -> IpAddress:
    """The IPv4 address inside an IPv6 address that leads to it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour or address
