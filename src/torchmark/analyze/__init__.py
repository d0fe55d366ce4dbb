"""Pure functions over samples and results; numpy and scipy.special only."""
