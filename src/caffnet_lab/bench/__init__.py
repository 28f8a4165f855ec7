"""Speed, accuracy and memory of the layer beside its rivals: ``caffnet bench``. The core never imports this.

`tasks` are given to `contestants` (ours, the backbone, the paper's `literal` enumeration, `rivals`), each compared
with the exact `reference`; `measure` makes records, `claims` judges them, `report` and `figures` show them.
"""
