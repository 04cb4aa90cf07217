"""The code that all packages use: checks of arguments, files, text and the kinds of encodings."""
