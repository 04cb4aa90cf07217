"""The ways from sums of sketches to estimates: all of a decoder in a file or a package."""
