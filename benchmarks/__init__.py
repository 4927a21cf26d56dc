"""Benchmarks of snnipu and its peers: ``python -m benchmarks CASE`` in the repository, or ``make bench CASE=...``.

Each contender of a problem is checked first. Contenders that pass the check are then timed in interleaved rounds.
"""
