"""``python -m fuzz.one TARGET SECONDS FOLDER``: fuzz one target with atheris, in a process of its own.

A finding does not end the run: it is written to ``findings.json`` in the folder, once for each place in the code, with
the smallest input that was seen. What libFuzzer itself finds (a crash of the interpreter, an input that takes too long,
too much memory) ends the run, and leaves its input in the folder.
"""

import json
import logging
import sys
import traceback
import warnings
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["nsq_ha", "tomllib", "email", "csv", "json"]):
    from fuzz import seeds
    from fuzz.targets import TARGETS

LONGEST_SECONDS: Final = 20
MOST_MEBIBYTES: Final = 1500


def place_of(error: BaseException) -> str:
    """Return the exception's type and where it was raised, as far as the code of this project goes."""
    own = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "nsq_ha" in frame.filename or "targets" in frame.filename
    ]
    return f"{type(error).__name__} at {' < '.join(reversed(own[-3:]))}"


def main() -> None:
    """Fuzz until the time is over."""
    name, seconds, given = sys.argv[1:4]
    folder, target = Path(given), TARGETS[name]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("error")
    found: dict[str, dict[str, str]] = {}

    def feed(data: bytes) -> None:
        try:
            target.run(data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - what it finds may be anything, a panic of Rust too
            place = place_of(error)
            if place not in found or len(data) * 2 < len(found[place]["hex"]):
                text = "".join(traceback.format_exception(error))
                found[place] = {"error": repr(error)[:500], "hex": data.hex(), "trace": text[-4000:]}
                (folder / "findings.json").write_text(json.dumps(found, indent=1), encoding="utf-8")

    corpus, begin = folder / "corpus", folder / "seeds"
    for path in (corpus, begin):
        path.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate((*target.seeds(), *seeds.kept(name))):
        (begin / f"{number:04d}").write_bytes(seed)
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            str(begin),
            f"-max_total_time={seconds}",
            f"-max_len={target.max_bytes}",
            f"-timeout={LONGEST_SECONDS}",
            f"-rss_limit_mb={MOST_MEBIBYTES}",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            *sys.argv[4:],
        ],
        feed,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
