"""``make demo``, which is ``python -m examples.flights``."""

from __future__ import annotations

import logging

from examples.flights.command import demo
from nsq_ha.cli.running import log_to_stderr

if __name__ == "__main__":
    log_to_stderr(logging.WARNING)
    logging.getLogger("nsq_ha.discovery").setLevel(logging.ERROR)  # if all nsqlookupds fail, the demo reports it
    demo(prog_name="make demo")
