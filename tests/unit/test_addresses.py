"""Which addresses are public."""

from __future__ import annotations

import ipaddress

import pytest

from worker_vllm.addresses import Exceptions, is_public

NOT_PUBLIC = """
    127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254
    100.64.0.1 100.100.100.200 100.127.255.255 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1
    192.88.99.1 168.63.129.16 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a00:1
    64:ff9b:1::a00:1 2002:7f00:1:: 2002:808:808:: 2001::1 2001:db8::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1
    fe80::1%eth0 ff02::1 ff0e::1 100::1
"""
PUBLIC = "8.8.8.8 1.1.1.1 172.32.0.1 100.128.0.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize("text", NOT_PUBLIC.split())
def test_an_address_of_this_network_is_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PUBLIC.split())
def test_an_address_of_the_world_is_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def allowed(text: str, host: str, address: str) -> bool:
    return Exceptions.parse(text).allow(host, ipaddress.ip_address(address))


def test_names_addresses_and_networks_can_be_excepted() -> None:
    text = " minio.internal, 10.1.0.0/16 ,192.168.0.7,fd00::/8 "
    assert allowed(text, "MINIO.internal.", "10.9.9.9")
    assert allowed(text, "a", "10.1.2.3")
    assert allowed(text, "a", "::ffff:10.1.2.3")
    assert allowed(text, "a", "192.168.0.7")
    assert allowed(text, "a", "fd00::1")
    assert not allowed(text, "a", "10.2.0.1")
    assert not allowed(text, "evil-minio.internal", "10.9.9.9")
    assert not allowed("", "a", "10.0.0.1")
    assert allowed("all", "a", "127.0.0.1")


@pytest.mark.parametrize("text", ["10.0.0.0/33", "http://minio", "a..b", "10.1.0.0/8"])
def test_what_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected names"):
        Exceptions.parse(text)
