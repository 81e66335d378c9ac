-- Smooth: the twin of smooth.rs. Numbers and state are those of the shaper.
local smooth = shaper
