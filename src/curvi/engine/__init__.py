"""The one loop: steps on the host or on device, stopping, progress and the trace."""
