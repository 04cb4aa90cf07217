"""Code that the other packages share, such as checks of arguments, saved files and encodings."""
