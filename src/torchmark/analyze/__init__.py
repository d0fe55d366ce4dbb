"""Pure functions over samples and results; numpy only."""
