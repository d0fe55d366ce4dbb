"""The charts of the page, one file for each: which panels the runs have something to say for, and how one is drawn."""
