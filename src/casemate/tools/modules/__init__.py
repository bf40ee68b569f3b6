"""Generates the modules of tools that programs import, and searches tools."""
