"""Print how many bytes of memory a call takes at its peak: `package folder method [number ...]`."""

import importlib
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    if STATUS.exists():  # elsewhere `ru_maxrss` is what there is; on Linux it counts the parent's too
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


package = importlib.import_module(sys.argv[1])
store = package.TrainingRunStore(package.LocalStorage(sys.argv[2]))
method = getattr(store, sys.argv[3])
arguments = [int(number) for number in sys.argv[4:]]
before = peak()
records = method(*arguments)
print(peak() - before)
