"""What runstore costs, next to a peer and a limit.

The peer is `tinker_cookbook.stores`; the limit is the same bytes through bare system calls and bare
orjson, nothing checked.

Run `python -m benchmarks`, or `python -m benchmarks quick`.
"""
