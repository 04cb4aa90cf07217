"""What every room stands on: checks of arguments, files, text and the kinds of encodings."""
