"""Who submitted an AppWrapper is read from annotations that may hold anything."""

import pytest

from dispatcher.api.annotations import LONGEST_NAME, MOST_GROUPS, UNKNOWN, Submitter, submitter_of

USER, GROUPS = "dispatcher.codeflare.dev/user", "dispatcher.codeflare.dev/groups"
SERVICE_ACCOUNT = f"system:serviceaccount:{'n' * 63}:{'a' * 253}"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({USER: "alice"}, Submitter("alice"), id="in-no-group"),
        pytest.param({USER: "alice", GROUPS: ""}, Submitter("alice"), id="in-no-group-that-is-told"),
        pytest.param(
            {USER: "alice", GROUPS: "vision\nll m"}, Submitter("alice", ("vision", "ll m")), id="in-groups"
        ),
        pytest.param({USER: SERVICE_ACCOUNT}, Submitter(SERVICE_ACCOUNT), id="longest-service-account"),
        pytest.param({USER: "Zoë Ärmel <z@ex.org>"}, Submitter("Zoë Ärmel <z@ex.org>"), id="any-letters"),
        pytest.param({USER: "u" * LONGEST_NAME}, Submitter("u" * LONGEST_NAME), id="longest"),
        pytest.param(
            {USER: "alice", GROUPS: "\n".join(map(str, range(MOST_GROUPS + 1)))},
            Submitter("alice", tuple(map(str, range(MOST_GROUPS)))),
            id="more-groups-than-are-kept",
        ),
        pytest.param(
            {USER: "alice", GROUPS: f"a\n\nb\tc\n{'d' * (LONGEST_NAME + 1)}\ne\r\nf"},
            Submitter("alice", ("a", "f")),
            id="groups-that-are-none",
        ),
    ],
)
def test_submitter_is_the_user_with_its_groups(annotations: dict[str, str], expected: Submitter) -> None:
    assert submitter_of(annotations) == expected


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({}, id="nothing-written"),
        pytest.param({GROUPS: "vision"}, id="only-groups"),
        pytest.param({USER: "", GROUPS: "vision"}, id="empty"),
        pytest.param({USER: "u" * (LONGEST_NAME + 1), GROUPS: "vision"}, id="too-long"),
        pytest.param({USER: "alice\nbob", GROUPS: "vision"}, id="two-lines"),
        pytest.param({USER: "alice\x00", GROUPS: "vision"}, id="nul"),
        pytest.param({USER: "\x1b[2Jalice", GROUPS: "vision"}, id="escape"),
        pytest.param({USER: "alice\N{RIGHT-TO-LEFT OVERRIDE}", GROUPS: "vision"}, id="turns-the-line-around"),
        pytest.param({"example.com/user": "alice"}, id="another-annotation"),
    ],
)
def test_submitter_that_cannot_be_read_counts_as_not_written(annotations: dict[str, str]) -> None:
    assert submitter_of(annotations) == UNKNOWN


def test_same_user_is_one_value_however_many_appwrappers_it_submits() -> None:
    first, second = (submitter_of({USER: "alice", GROUPS: "a\nb"}) for _ in range(2))
    assert first is second
