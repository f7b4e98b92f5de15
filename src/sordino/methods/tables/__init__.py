"""The tables of the methods, one file each, named as the method's own file, which computes what they describe.

They are apart from the code, which needs torch: reading a recipe does not.
"""
