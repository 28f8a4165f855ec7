"""The paper's Table 1, measured, and its Figures 1 and 4: ``caffnet methods`` and ``caffnet figures``.

families   random constraints of every kind
table      every method on every kind, and the paper's claims judged by the result
report     the table as text, HTML and JSON
figures    Figures 1 and 4
"""
