"""Online learning: training whose memory does not grow with time."""

from snnipu.online.module import Online as Online
