"""The page that compares clients: each feature links to a test, and what we lack has a reason."""

import re

from tests.examples import ROOT
from tests.support.pages import items_of, named_in

_, *OURS, OTHERS = (ROOT / "docs" / "reference" / "comparison.md").read_text("utf-8").split("\n## ")
FEATURES = items_of("\n".join(OURS))
LACKING = items_of(OTHERS)


def test_the_page_is_about_something() -> None:
    assert len(FEATURES) >= 60
    assert OTHERS.startswith("Only others")


def test_each_feature_has_a_test() -> None:
    for feature in FEATURES:
        assert 0 < feature.count("[✓]") == len(named_in(feature)), feature


def test_what_others_have_and_we_lack_is_little_and_has_reasons() -> None:
    assert 0 < len(LACKING) <= 8, LACKING
    assert all(re.search(r": .{12}", each, re.DOTALL) for each in LACKING), LACKING
