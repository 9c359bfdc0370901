"""NoticesSeen: the time until which each user has read their notices. Notices themselves are computed from events."""

from django.conf import settings
from django.db import models


class NoticesSeen(models.Model):
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.user} has read until {self.until}"
