"""``wink demo``: the main job on the embedded default, with faults, and claims that are checked."""
