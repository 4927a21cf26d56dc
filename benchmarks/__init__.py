"""Benchmarks of snnipu beside its peers: ``python -m benchmarks CASE`` in the repository, or ``make bench CASE=...``.

Each contender of a problem is checked first. Contenders whose check passed are then timed in interleaved rounds.
"""
