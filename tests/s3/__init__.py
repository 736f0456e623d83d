"""Tests against a real S3 server, and the server, the fault proxy and the fixtures that they use."""
