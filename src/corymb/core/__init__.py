"""The two rooms and the door between them: what a client function and an algorithm may see, and what runs them."""
