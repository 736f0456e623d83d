"""Import a package; print the seconds, or how many heavy packages that loaded: `package wanted`."""

import importlib
import sys
import time

HEAVY = ("s3fs", "fsspec", "botocore", "aiohttp", "rich", "typer")

start = time.perf_counter()
importlib.import_module(sys.argv[1])
seconds = time.perf_counter() - start
print(seconds if sys.argv[2] == "seconds" else sum(name in sys.modules for name in HEAVY))
