"""`corymb flower`: a federation from a scaffold to a report. `new` makes a folder, the rest works in it."""
