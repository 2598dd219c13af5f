"""Every limit of the model evaluation in one place, each with its reason."""

# Distance of a candidate over stock's own from float64, medians over rows. All rows of a mode: thousands of rows, so
# that a legitimate change of summation order stays within a few per cent.
POOLED = 1.25
POOLED_KL = POOLED**2  # KL grows with the square of the distance
# One exercise has a tenth of the rows, and a router spreads their distances over a decade: here the lower end of the
# interval is compared, so that only what few rows already prove refuses.
SINGLE = 1.6
ALONE = 2.5  # the ratio itself: one sequence alone has no interval
# Columns of hidden rows or logits: one tile scaled by 1.05 moves its own block's ratio to 4, legitimate changes stay
# below 1.25. In one exercise a block is compared with the middle block, which cancels what all columns share.
BLOCK = 1.5
BLOCK_SINGLE = 1.8
# A sequence that is this much farther than stock usually is, at every step: another token's row is 12 to 70 times
# farther, legitimate changes stay below 1.
SEQUENCE = 4.0
FAR = 10.0  # medians of stock's distance: what only rare rows reach
# Recurrent states: the typical distance from float64 at a checkpoint, over stock's there. Rounding of activations
# makes most of it, for both sides alike; few sequences, so wider than POOLED.
DRIFT = 1.5
GROWTH = 1.35  # that ratio at the last checkpoint over the first: a kernel whose error grows while stock's does not
# Departures per token from float64, over stock's from it; or from stock, over stock's own in another batch composition.
# Refused when the lower bound is above: the data then prove a hazard ratio worse than this.
HAZARD = 1.25
# Tasks: one point, by the one-sided lower bound. The twenty items of a CPU's plan cannot bound it tighter than twelve
# points: there the rule is only shown at work.
ACCURACY_LOSS = {"cuda": 0.01, "cpu": 0.15}
GATED = 0.95  # tasks that stock answers less often than this say little about a kernel
ITEMS_CONFIDENCE = 0.05  # of that lower bound
ALPHA = 1e-3  # of each exact test on rows or items: one good kernel in a thousand may be refused by one
HAZARD_ALPHA = 0.01  # two-sided, of each hazard interval: half of it is a chance to refuse a ratio of exactly HAZARD
SAMPLING_ALPHA = 1e-4  # of all homogeneity tests of an exercise together
LONG_ALPHA = 0.01  # a handful of items behind long prompts: seven lost of sixteen, none won, prove a loss
