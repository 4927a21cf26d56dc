"""Code of every Python process that starts with this folder on PYTHONPATH: see torchvision_schemas.py."""

from torchvision_schemas import define_torchvision_schemas

define_torchvision_schemas()
