"""Which sub-constraint wins: one file per search, one contract (`contract.Choice`)."""
