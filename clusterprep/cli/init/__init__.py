"""`clusterprep init`: from hosts, looked at as check does, to a commented inventory that describes them."""
