"""The laws, one function each: plain asserts, without a test runner."""
