"""Packages from the operator's index: what may be asked for, and the gateway through which installers get it."""
