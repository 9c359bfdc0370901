"""Template tags and filters: the functions of frontend.ui.formatting."""

from django import template

from frontend.ui import formatting

register = template.Library()

for _filter in (
    formatting.duration,
    formatting.minutes,
    formatting.ago,
    formatting.moment,
    formatting.clocked,
    formatting.mib,
    formatting.number,
    formatting.short_model,
    formatting.part_of,
    formatting.code_words,
    formatting.bar_own,
    formatting.borrowed,
    formatting.waits_on,
    formatting.weight,
    formatting.summed,
    formatting.in_gpus,
    formatting.item,
):
    register.filter(_filter.__name__, _filter)
for _tag in (
    formatting.state,
    formatting.elapsed,
    formatting.shape,
):
    register.simple_tag(_tag)
