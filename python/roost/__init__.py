"""Distributed programming in one ordinary Python program."""
