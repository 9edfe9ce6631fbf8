"""What is published: sdist, wheel, one file for machines without pip, Debian package and OCI image.

`make dist`, `make pyz`, `make deb` and `make image` run the modules here. `source_date` is the time
that all of them carry, so that the same commit gives the same bytes.
"""
