"""A text to score models on where none is given: plain prose, written for this."""

SAMPLE_TEXT = """\
The harbour town wakes before the sun does. At half past four the first boats come round the \
breakwater, low in the water, and the lights on the quay go on one after the other. Nobody speaks \
much. The crates are passed from hand to hand, weighed, covered with ice and pushed into the \
hall, where the buyers stand with their collars up and write numbers on small pieces of paper.

By the time the children walk to school the fish is already on the road. A lorry needs two hours \
to the city if the pass is open, and four if it has to take the coast. In winter the drivers \
listen to the weather report the way other people listen to music. Snow on the pass means that \
the restaurants will serve something else that evening, and that the price at the hall will fall.

My grandfather used to say that there are three kinds of work: work that is finished in the \
evening, work that is finished in the autumn, and work that is never finished. Fishing, he said, \
is the first kind, farming is the second, and repairing a boat is the third. He had repaired the \
same boat for thirty years. Every plank in it had been replaced at least once, and he liked to \
ask visitors whether it was still the boat that his own father had bought.

A computer has no such doubts. It keeps a list of every part, with a date and a number, and when \
a part is changed the number changes too. If two lists are equal, the boats are equal, and there \
is nothing more to discuss. Engineers find this a great relief. When a program gives the wrong \
answer, they compare the list of today with the list of yesterday, and look first at whatever is \
different. Most of the time the fault is there. Sometimes it was there all along, and only the \
question is new.

The old men on the bench in front of the hall do not trust lists. They trust the smell of the \
wind, the colour of the water at the mouth of the river, and each other, in that order. On some \
days they are wrong. On those days the boats come back early, empty, and nobody mentions it.
"""
