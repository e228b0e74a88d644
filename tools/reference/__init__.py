"""The reference pages of the documentation, written from the objects that the worker itself uses.

Never in the wheel. `make reference` writes docs/reference, and tests/tools/reference holds the pages to what this
package makes.
"""
