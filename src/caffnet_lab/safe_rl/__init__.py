"""Action-constrained reinforcement learning: ``caffnet rl``. Tasks, agents, one record per run, a report."""
