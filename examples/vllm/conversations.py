"""A few conversations of real text: a document each, and questions about it, turn after turn."""

from __future__ import annotations

__all__ = ["CONVERSATIONS"]

_LIGHTHOUSE = """
The lighthouse stands on a rock that is covered twice a day. Its builder, a man who had only ever made clocks, cut
each stone so that it locks into its neighbours on all four sides, as the pieces of a puzzle do, and let the whole
tower grow narrower as it rises, after the trunk of an oak. For three summers the masons could work no more than four
hours between two tides. They lived on a ship that was anchored half a mile away, and when the weather was bad they
could see their own work disappear under the waves and come back. The light was lit in the autumn of the third year:
twenty-four candles in a ring of iron. The keepers were three, so that if one fell ill and one went for help, somebody
stayed with the light. They kept a book. It says how high the sea was, how much oil was left, which ships went by,
and, on most days, nothing more. On the ninth of December, in the eleventh year, it says that a piece of the rock as
large as a cart was lifted over the gallery and broke two panes, and that the light did not go out. Later the candles
were replaced by lamps with mirrors, the mirrors by a lens as tall as a man, and at last the keepers by a machine; but
the stones are those that were laid in the first three summers, and not one of them has moved.
"""

_BREAD = """
A dough is only flour, water, salt and time. Flour holds two proteins that do nothing while they are dry. Wet, they
find one another and make a net, and kneading pulls that net straight. The yeast eats the sugar that the flour's own
enzymes free from its starch, and breathes out gas, and the net holds the gas. All that a baker does is to keep these
things in step. If it is warm the yeast is faster than the enzymes: the bread rises well, and tastes of little. If it
is cold the yeast nearly sleeps, while the enzymes and a few bacteria go on; so a dough that has spent a night in the
cellar tastes of nuts and has a dark crust, because sugar is left over to brown. Salt slows the yeast and makes the
net firmer. Fat makes it tender, since it comes between the proteins. Steam in the first ten minutes keeps the skin of
the loaf soft, so that it can grow before it sets. A loaf is done when it sounds hollow from below, that is, when the
water in the middle has turned to steam and gone. It should then be left alone for an hour: inside it is still
cooking, and the starch has not yet set. Bread goes stale not by drying but because that starch slowly crystallises,
which is why warming makes it fresh again, once.
"""

_RIVER = """
The village has moved three times, and each time because of the river. It comes down from the mountains with snow
water in May, brown and fast, and carries as much gravel as it can; where the valley opens it slows and lets the
gravel fall. So it builds up its own bed, until one spring it lies higher than the fields, breaks out to one side and
finds a new way. The first village was a mile to the east, where there is now an orchard; from the air one can see the
streets as lines of paler grass. The second stood by the old mill. When the flood came there it came at night and
slowly, and people carried the church's bell to the hill before anything else, because it was the bell that could call
for help. The third is where it is today, on a terrace that the river made some ten thousand years ago and has never
reached again. In the nineteenth century engineers gave the river a straight bed with walls of stone. It obeyed, and
cut itself down by four metres, so that the wells ran dry and the bridges had to be given longer feet. Since then some
of the walls have been taken away. The river has islands again, and plovers nest on them; in a flood it may spread
over meadows where nobody lives. The terrace is dry, and on the town hall hangs the bell.
"""

CONVERSATIONS = [
    (
        _LIGHTHOUSE,
        ["Who built the tower, and what had he made before?", "Why were there three keepers?", "What moved?"],
    ),
    (_BREAD, ["Why does a cold dough taste of more?", "What does the salt do?", "Why does bread go stale?"]),
    (
        _RIVER,
        ["How often has the village moved?", "What did the people carry to the hill?", "What did the engineers do?"],
    ),
]
"""(document, questions) of each conversation."""
