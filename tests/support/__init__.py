"""Helpers that several folders of tests share; each module is one of them."""
