"""The page that maps the tree names every module, by its own docstring."""

from docs._ext.layout import PACKAGE, folders, module_map


def test_it_lists_every_module_once() -> None:
    listed = [path for _, modules in folders() for path in modules]
    expected = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    assert sorted(listed) == sorted(expected)
    rows = [line for line in module_map().splitlines() if line.startswith("| `")]
    assert len(rows) == len(listed)


def test_every_line_is_one_sentence_that_fits() -> None:
    rows = [line for line in module_map().splitlines() if line.startswith(("| `", "**`"))]
    assert [row for row in rows if len(row) > 200] == []
    assert [row for row in rows if not row.removesuffix(" |").endswith(".")] == []
