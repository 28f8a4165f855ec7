"""The field's yardsticks: public tasks that hard-constrained networks are compared on.

tasks      names, rows, seeds and settings
data       where other people's data are
gaps       how far answers are from the optimum
metric     the projection in a metric
programs   DC3's, HardNet's and SnareNet's programs with 100 variables
"""
