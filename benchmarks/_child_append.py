"""Append records of 9 keys to a file, one write each, at a steady pace: `path count records_a_second`."""

import os
import sys
import time

path, count, pace = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = (
    "loss",
    "entropy",
    "grad_norm",
    "kl/sample_v1",
    "reward/total",
    "learning_rate",
    "time/sampling",
    "time",
)
body = ", ".join(f'"{name}": 0.{number}0123456789012345' for number, name in enumerate(names))
descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
start = time.perf_counter()
for step in range(count):
    os.write(descriptor, f'{{"step": {step}, {body}}}\n'.encode())
    ahead = start + step / pace - time.perf_counter()
    if ahead > 0.005:
        time.sleep(ahead)
os.close(descriptor)
