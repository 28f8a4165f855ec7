"""The solver behind `caffnet.project`: problem -> run (kernel, graph or another device) -> gradient."""
