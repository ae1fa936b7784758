"""The options of producers and consumers: ``config`` declares each one, once, in the language of ``language``.

``environment`` reads them from variables and a TOML file; ``keywords`` lists them for type checkers.
"""
