"""The paper's three experiments, from a config to its tables and figures.

config   -> what to run: a protocol, a TOML file, options
run      -> build, train (resumable), evaluate
records  -> one JSON file per finished run
report   -> tables and figures, from the records alone
"""
