"""Federations of web pages: the parameter server, what it tells pages to do, and the native client that joins them.

docs/web-protocol.md says what travels; docs/serve.md is for those who run a server.
"""
