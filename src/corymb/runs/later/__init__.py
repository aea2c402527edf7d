"""Operations on runs that have ended."""
