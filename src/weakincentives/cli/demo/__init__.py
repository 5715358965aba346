"""``wink demo``: workers on a SQLite file, with faults, and a check of what is promised."""
