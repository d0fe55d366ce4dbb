"""How a case is run: from a sweep to cases, from a case to a fresh process, from a process to samples."""
