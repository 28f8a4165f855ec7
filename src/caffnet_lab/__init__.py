"""The laboratory around `caffnet`: the paper's experiments, measurements, reports and the command line.

experiments     the paper's three experiments, their records and the report made from them
bench           speed, accuracy and memory of the layer beside its rivals
methods_table   the paper's Table 1, measured, and its figures
cli             the ``caffnet`` command

The library never imports this package.
"""
