"""Programs as users of `tinker_cookbook.stores` write them; only their import line names the package."""
