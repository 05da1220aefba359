"""One module a framework, with the smallest program that each asks for."""
