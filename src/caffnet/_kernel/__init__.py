"""The kernel: one algorithm in portable C, and `native`, which calls it."""
