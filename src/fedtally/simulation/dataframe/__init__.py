"""Engines that count a table of several machines where it lies, a module each."""
