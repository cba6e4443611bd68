"""Tables: rows of named columns from CSV and Parquet files, as typed values and as the matrix that a model takes."""
