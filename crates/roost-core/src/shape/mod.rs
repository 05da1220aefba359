//! Extents, regions, points and strided rank sets.
