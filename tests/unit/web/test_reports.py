"""The reports of a window as pages: what an address may ask for."""

from __future__ import annotations

import pytest

from dispatcher.cli.command_line import NotWritten
from dispatcher.store.readers.reports import Filter
from dispatcher.web.past import Past
from dispatcher.web.reports import FIELDS, PAGES, Asked, asked_of, usage_page, utilisation_page, waits_page


def test_what_the_address_does_not_know_is_left_out() -> None:
    asked = Asked.of({"since": " 24h ", "user": "ada", "colour": "red", "token": "secret"})
    assert asked == Asked(since="24h", user="ada")
    assert asked.filter == Filter(user="ada")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(since="yesterday"), "'yesterday' is neither how long ago"),
        (Asked(since="1h", until="2h"), "1h is not before 2h"),
        (Asked(since="0001-01-01T00:00+14:00"), "0001-01-01T00:00"),
    ],
)
def test_window_that_cannot_be_read_is_said(asked: Asked, said: str) -> None:
    with pytest.raises(NotWritten, match=said):
        waits_page(Past("postgresql://nobody@localhost/none"), asked)


@pytest.mark.parametrize("page", PAGES)
def test_address_of_a_page_has_no_parameter_that_it_would_ignore(page: str) -> None:
    for name in Asked.__struct_fields__:
        if name in FIELDS[page]:
            assert getattr(asked_of(page, {name: "x"}, ""), name) == "x"
        else:
            with pytest.raises(NotWritten, match=f"^{page} knows no {name}, but since, until, "):
                asked_of(page, {name: "x"}, "")


def test_page_is_about_the_namespace_of_the_command_where_it_has_one() -> None:
    assert asked_of("waits", {"colour": "red"}, "team-a") == Asked(namespace="team-a")
    assert asked_of("waits", {"namespace": ""}, "team-a") == Asked()
    assert asked_of("utilisation", {}, "team-a") == Asked()


@pytest.mark.parametrize("asked", [Asked(by="colour"), Asked(per="year")])
def test_key_of_usage_is_one_of_those_that_are_named(asked: Asked) -> None:
    with pytest.raises(NotWritten, match=r"is none of (namespace, user, queue, cluster|hour, day, total)$"):
        usage_page(Past("postgresql://nobody@localhost/none"), asked)


def test_utilisation_of_a_long_window_is_refused() -> None:
    with pytest.raises(NotWritten, match="longer than 31 days"):
        utilisation_page(Past("postgresql://nobody@localhost/none"), Asked(since="40d"))
