"""The version of the installed package."""

import contextlib
import os


def _installed() -> str:
    """Return the version of the installed package, if possible without loading ``importlib.metadata``.

    That module loads e-mail, CSV and ZIP: 3 MB and 20 ms in each process that publishes or consumes. pathlib and its
    imports take 0.6 MB. An ordinary installation has the version in the name of the folder beside the package.
    """
    beside = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - see above
    with contextlib.suppress(OSError):  # run from a ZIP file
        for name in os.listdir(beside):  # noqa: PTH208 - see above
            if name.startswith("nsq_ha-") and name.endswith(".dist-info"):
                return name.removeprefix("nsq_ha-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version("nsq_ha")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"


__version__ = _installed()
