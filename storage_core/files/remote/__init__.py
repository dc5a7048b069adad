"""Files in object storage or HDFS, as the rest of `files` reads them."""
