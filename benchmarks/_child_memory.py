"""Print how many bytes of memory `read_metrics` takes at its peak: `package folder`."""

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
before = peak()
records = store.read_metrics()
print(peak() - before)
