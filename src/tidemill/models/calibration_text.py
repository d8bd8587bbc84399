"""A text on which rounded weights are compared with exact ones. Written for this project, of no other source."""

from __future__ import annotations

__all__ = ["CALIBRATION_TEXT"]

CALIBRATION_TEXT = """\
The mill stood where the creek met the estuary, a low building of tarred boards on a foot of granite. Twice a day the
sea came up the channel and pushed against the gates; twice a day the gates opened by themselves, let the water into
the pond behind the dam, and closed again when the tide turned. Nothing in this part of the work needed a miller. The
moon did it, and the moon had never once been late.

What needed a miller was the time between. When the water outside had fallen far enough, she raised the sluice by a
hand's breadth, and the wheel began to turn, slowly at first, with a sound like somebody clearing their throat. From
then on the trick was to be boring. A farmer who brought forty sacks on Monday wanted them ground as finely as the one
who brought a single sack on Friday, and the stones did not care which of them had shouted loudest in the yard. Too
much water and the flour came out hot and grey; too little and the wheel stalled, and every sack behind it had to wait
for the next tide.

Old Perrin, who had kept the mill before her, used to say that there are only two mistakes. The first is to grind
whatever comes in at the moment it comes in. The second is to wait until everything has come in before you start.
Between those two lies all the craft there is: a full pond, a steady wheel, and a list on the door that says whose
grain is next.

She kept the list in pencil. On a good day it read something like this:

  1. Marta Oyelaran, 3 sacks of rye, coarse
  2. The bakery, 12 sacks of wheat, fine, needed before noon
  3. Tomas (the younger), 1 sack, anything
  4. The bakery again, 12 sacks, no hurry

The bakery's first order was large and urgent, so she split it. Four sacks, then Marta's rye, then four more, then the
boy, then the last four. Everybody waited a little and nobody waited long. When the baker complained that his twelve
sacks had been cut into pieces, she showed him the clock: the whole order was done eleven minutes later than it would
have been on its own, and three other people had gone home in the meantime.

There were accidents, of course. In the winter of 1987 the upper gate jammed with ice and the pond drained in a night.
In 2003 a visitor opened the sluice for a photograph and flooded the grain floor to a depth of 14 centimetres. After
that she put a padlock on the wheel and a notice beside it, in three languages, that said: please do not touch; it is
working.

"How do you know how much water a sack will take?" the visitors asked her. "You don't," she would say. "You look at
the grain, you look at the farmer, and you guess.
"""
