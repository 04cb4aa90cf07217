"""Count a table on the machines that hold it: a module for each engine, Dask and Spark."""
