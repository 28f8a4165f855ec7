"""The paper's Table 1, measured, and its figures: ``caffnet methods`` and ``caffnet figures``.

families   random constraints of every kind
table      every method on every kind, and the paper's claims judged by the result
report     the table as text, HTML and JSON
figures    Figures 1, 2, 3 and 8, and the error by width
"""
