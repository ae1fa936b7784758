"""The folder ``reference`` says what the code says."""

import pytest

import nsq_ha
from nsq_ha.spark.options import KNOWN
from scripts import reference

MADE = reference.made()


@pytest.mark.parametrize("name", MADE)
def test_a_file_is_up_to_date(name: str) -> None:
    assert (reference.FOLDER / name).read_text("utf-8") == MADE[name], "run `make reference`"


def test_nothing_else_is_in_the_folder() -> None:
    assert {path.name for path in reference.FOLDER.iterdir()} == MADE.keys()


def test_each_option_and_each_public_name_is_there() -> None:
    assert all(f"| `{name}` |" in MADE["options.md"] for name in (*nsq_ha.ConsumerConfig.__dataclass_fields__, *KNOWN))
    shown = {
        name for name in nsq_ha.__all__ if f"### `{name}`" in MADE["calls.md"] or f"`{name}` |" in MADE["errors.md"]
    }
    assert set(nsq_ha.__all__) - shown == {"__version__"}
