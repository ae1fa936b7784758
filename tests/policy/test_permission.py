"""When a publish that was refused for lack of permission is sent once more."""

import pytest

from nsq_ha.errors import SERVER_ERRORS, AuthError
from nsq_ha.policy.permission import RENEWABLE, renews


@pytest.mark.parametrize("code", sorted(SERVER_ERRORS))
@pytest.mark.parametrize("has_secret", [True, False])
@pytest.mark.parametrize("failures", [0, 1, 7])
def test_what_the_auth_server_answered_is_renewed_once_and_its_silence_each_time(
    code: str, has_secret: bool, failures: int
) -> None:
    is_renewed = code == "E_AUTH_FAILED" or (code == "E_UNAUTHORIZED" and failures == 0)
    assert renews(code, has_secret=has_secret, failures=failures) is (is_renewed and has_secret)


def test_what_is_renewed_would_otherwise_be_final() -> None:
    assert {SERVER_ERRORS[code] for code in RENEWABLE} == {AuthError}
    assert not AuthError.retriable
