"""Safe control, measured: ``caffnet simulate``. Every system with a reckless policy, with and without the filter."""
