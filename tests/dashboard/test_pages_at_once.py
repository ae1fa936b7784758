"""What rendered pages take of memory, however many addresses there are."""

from __future__ import annotations

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.dashboard import app as module
from nsq_ha.dashboard.app import Dashboard, DashboardOptions


@pytest.mark.parametrize(("most", "is_kept"), [(2**20, True), (2**14, False)])
def test_pages_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch, *, most: int, is_kept: bool) -> None:
    """Each query is an address of its own: 200 pages of 3.7 MiB were kept."""
    monkeypatch.setattr(module, "MAX_KEPT", most)
    dashboard = Dashboard(AdminClient("127.0.0.1:1"), DashboardOptions())
    first = dashboard.render("/", may_change=False)
    for number in range(50):
        dashboard.render(f"/?x={number}", may_change=False)
    assert (dashboard.render("/", may_change=False) is first) == is_kept
