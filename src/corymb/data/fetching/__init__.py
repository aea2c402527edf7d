"""Public files by way of a cache folder: fetched once, checked always."""
