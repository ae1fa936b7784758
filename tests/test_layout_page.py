"""The page that maps the tree names every module, by its own docstring."""

from docs._ext.layout import PACKAGE, first_line, folders, layers, module_map


def test_it_lists_every_module_once() -> None:
    listed = [path for _, modules in folders() for path in modules]
    expected = [path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    assert sorted(listed) == sorted(expected)
    rows = [line for line in module_map().splitlines() if line.startswith("   * - ``")]
    assert len(rows) == len(listed)


def test_every_line_is_one_sentence_that_fits() -> None:
    named = [path for folder, modules in folders() for path in (folder / "__init__.py", *modules)]
    lines = [f"| `{path.name}` | {first_line(path)} |" for path in named]
    assert [line for line in lines if len(line) > 200] == []
    assert [line for line in lines if not line.removesuffix(" |").endswith(".")] == []
    page = module_map()
    assert [path for path in named if first_line(path) not in page] == []


def test_the_layers_are_those_that_are_checked_and_name_what_exists() -> None:
    shown = layers()
    names = [path.stem if path.suffix else path.name for layer in shown for path in layer]
    top = {path.stem if path.suffix else path.name for path in PACKAGE.glob("[!_]*") if path.suffix in ("", ".py")}
    assert set(names) >= top
    assert len(names) == len(set(names)) > 20
    assert all(path.exists() for layer in shown for path in layer)
    assert names.index("producer") < names.index("protocol") < names.index("errors")
