"""Deployments: where and when Evergreen's flows run."""
