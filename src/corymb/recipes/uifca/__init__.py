"""Chung (UC Berkeley 2023, chapter 4): UIFCA."""
