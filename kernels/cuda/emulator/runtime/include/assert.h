// All of it stands before every source already: device.h.
