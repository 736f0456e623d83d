"""The tests' fault proxy before a server, told what to do line by line: `server`.

Prints its URL, then answers each line of its input; it ends with its input.
"""

import json
import sys
from urllib.parse import parse_qs

from tests.s3.proxy import FaultProxy, Request


def place_of(request: Request) -> str:
    """The key that a request is about, or the prefix that it lists."""
    return request.key or parse_qs(request.query).get("prefix", [""])[0]


with FaultProxy(sys.argv[1]) as proxy:
    print(json.dumps(proxy.endpoint), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: list[object] = []
        if "latency" in order:
            proxy.latency = order["latency"]
        if "clear" in order:
            proxy.clear()
        if "report" in order:
            if proxy.errors:
                raise proxy.errors[0]
            requests = proxy.requests
            sent = sum(request.bytes_in for request in requests)
            received = sum(request.bytes_out for request in requests)
            answer = [[place_of(request) for request in requests], sent, received]
        print(json.dumps(answer), flush=True)
