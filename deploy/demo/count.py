"""Count seconds and print each, as a demo job with a live log."""

import os
import sys
import time

seconds = int(sys.argv[1])
print(f"job {os.environ.get('GPUSCHED_JOB_ID')} on {os.environ.get('GPUSCHED_NODE')}", flush=True)
print(f"devices: {os.environ.get('CUDA_VISIBLE_DEVICES') or 'none'}", flush=True)
for second in range(seconds):
    time.sleep(1)
    print(f"step {second + 1:3d} of {seconds}", flush=True)
