"""bisect-recompute: names the commit, the setting and the tensor behind a memory or throughput shift.

The folders follow the way of one question, and each knows only those before it:
``history`` (range, commits, worktrees) -> ``differ`` (what a commit changes in recompute settings) -> ``driver`` (which
commit to probe next) -> ``probe`` (one run of a commit's code) -> ``measurement`` (what runs say about a commit) ->
``verdict`` (what shifted, where and why) -> ``report`` (the files of a run) -> ``cli``.
"""
