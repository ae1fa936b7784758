"""The version of the installed package."""

import os
import sys


def _installed() -> str:
    """Return the version of the installed package, if possible without loading ``importlib.metadata``.

    That module loads e-mail, CSV and ZIP: 3 MB and 20 ms in each process that publishes or consumes. pathlib and its
    imports take 0.6 MB. The name of a folder has the version: beside the package in an ordinary installation, elsewhere
    on the path in an editable one.
    """
    beside = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - see above
    for place in (beside, *sys.path):
        try:
            names = os.listdir(place or os.curdir)  # noqa: PTH208 - see above
        except OSError:  # a ZIP file, or a folder that does not exist
            continue
        for name in names:
            if name.startswith("nsq_ha-") and name.endswith(".dist-info"):
                return name.removeprefix("nsq_ha-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version("nsq_ha")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


__version__ = _installed()
