"""Su, Xu, Yang (2022): moment descent."""
