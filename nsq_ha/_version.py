"""The version, read from what the installer wrote."""

from pathlib import Path


def _installed() -> str:
    """Return the version of the installed package, without loading ``importlib.metadata`` where that can be spared.

    That module brings e-mail, CSV and ZIP with it: 3 MB and 20 ms in each process that publishes or consumes. In an
    ordinary installation the version stands in the name of the folder beside the package.
    """
    for folder in Path(__file__).parent.parent.glob("nsq_ha-*.dist-info"):
        return folder.stem.removeprefix("nsq_ha-")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version("nsq_ha")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


__version__ = _installed()
