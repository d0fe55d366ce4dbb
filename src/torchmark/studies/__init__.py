"""Questions that take many cases, one file each."""
