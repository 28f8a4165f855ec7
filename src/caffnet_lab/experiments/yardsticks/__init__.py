"""The field's yardsticks: public tasks that hard-constrained networks are compared on.

tasks      names, rows, seeds and settings
data       where other people's data are
yardstick  what tasks with an optimum have in common; gaps, how far answers are from it
metric     the projection in a metric
programs   DC3's, HardNet's and SnareNet's programs with 100 variables
dispatch   optimal power flow on the grids that `grid` reads
forecast   coherent forecasts of the series that `hierarchy` reads
driving    HardNet's safe control
"""
