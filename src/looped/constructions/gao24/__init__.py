"""gao24's lemmas and theorems as programs, which `compiler.construct` turns into AlgoFormers.

model = construct(newton_regression.theorem_41(d=5, num_examples=40, alpha=1e-4), loops=15)
"""
