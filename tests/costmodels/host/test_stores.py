"""Processes and threads of this host meet at a store."""

import socket

import pytest

from costmodels.host.stores import HERE, served_store, visited_store


def test_visitors_read_what_others_wrote() -> None:
    store = served_store()
    visited_store(store.port).set("word", "here")
    assert visited_store(store.port).get("word") == b"here"


def test_other_networks_do_not_reach_it() -> None:
    store = served_store()
    with socket.socket() as other:
        other.bind(("127.0.0.2", store.port))  # nobody listens at this address, or at all of them
    with socket.create_connection((HERE, store.port)), pytest.raises(OSError, match="in use"), socket.socket() as same:
        same.bind((HERE, store.port))
