"""When a refusal for lack of permission is answered by one more connection."""

import pytest

from nsq_ha.errors import SERVER_ERRORS, AuthError
from nsq_ha.policy.permission import RENEWABLE, renews


@pytest.mark.parametrize("code", sorted(SERVER_ERRORS))
@pytest.mark.parametrize("has_secret", [True, False])
@pytest.mark.parametrize("failures", [0, 1, 7])
def test_only_the_first_refusal_with_a_secret_is_renewed(code: str, has_secret: bool, failures: int) -> None:
    is_permission = code in ("E_UNAUTHORIZED", "E_AUTH_FAILED")
    assert renews(code, has_secret=has_secret, failures=failures) is (is_permission and has_secret and failures == 0)


def test_what_is_renewed_would_otherwise_be_final() -> None:
    assert {SERVER_ERRORS[code] for code in RENEWABLE} == {AuthError}
    assert not AuthError.retriable
