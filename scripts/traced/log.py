"""Services that log: short lines at the end of files, one write each. For scripts/record-traces.sh.

    log.py DIRECTORY LINES
"""
import logging
import logging.handlers
import os
import random
import sys

directory, lines = sys.argv[1], int(sys.argv[2])
random.seed(lines)
services = []
for name, share in [("web", 6), ("mail", 2), ("cron", 1)]:
    service = logging.getLogger(name)
    service.setLevel(logging.INFO)
    path = os.path.join(directory, name + ".log")
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=256 << 10, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s host %(name)s[%(process)d]: %(levelname)s %(message)s"))
    service.addHandler(handler)
    services += [service] * share

for number in range(lines):
    service = random.choice(services)
    if random.random() < 0.01:
        try:
            [][number]
        except IndexError:
            service.exception("request %d failed", number)
    else:
        words = " ".join(f"{random.getrandbits(28):x}" for _ in range(random.randint(2, 20)))
        service.info("request %d from 10.0.%d.%d: %s", number, number % 256, random.randrange(256), words)
