"""Users' own data: arrays, files, folders, tables."""
