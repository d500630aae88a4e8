"""What should be, against what is: boot, idle times, what is to be kept ready, reload, and the order of the end."""
