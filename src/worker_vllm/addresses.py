"""Which network addresses everybody may reach, and which are this machine's or its neighbours'."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALL = "all"

_UNICAST_6 = ipaddress.IPv6Network("2000::/3")  # RFC 4291: all global unicast so far
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in its last 32 bits
_6TO4 = ipaddress.IPv6Network("2002::/16")  # RFC 3056: wraps an IPv4 address; out of use
# Global to Python 3.11, but not by what answers there: Azure's metadata and Oracle's, the relays of 6to4.
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))


def is_public(address: Address) -> bool:
    """Whether `address` is a global unicast address: not loopback, private, link-local (cloud metadata),
    carrier-grade NAT, multicast, reserved or unspecified, nor an IPv6 form of such an IPv4 address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        return address.is_global and address in _UNICAST_6 and address not in _6TO4
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


@dataclass(frozen=True)
class Exceptions:
    """Hosts that may be reached although their addresses are not public.

    Attributes:
        names: host names in lower case; `ALL` among them stands for every host.
        networks: in which an address may lie; a single address is a network of its own.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Exceptions:
        """Read a comma list of host names, addresses, networks (10.1.0.0/16), or the word all.

        Raises ValueError for what is none of these.
        """
        names, networks = set(), []
        for word in (part.strip().lower() for part in text.split(",")):
            if not word:
                continue
            try:
                networks.append(ipaddress.ip_network(word.strip("[]")))
            except ValueError:
                if not all(label and label.replace("-", "a").isalnum() for label in word.split(".")):
                    raise ValueError(
                        "expected names, addresses or networks such as minio.internal,10.1.0.0/16, or all"
                    ) from None
                names.add(word)
        return cls(frozenset(names), tuple(networks))

    def allow(self, host: str, address: Address) -> bool:
        """Whether `host`, found at `address`, is among them."""
        if ALL in self.names or host.lower().rstrip(".") in self.names:
            return True
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)
