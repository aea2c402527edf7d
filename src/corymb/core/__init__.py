"""Client code, server code and the interface between them; the engine protocol and the driver."""
