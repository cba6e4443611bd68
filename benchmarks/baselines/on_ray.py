"""A training on Ray as the train step starts it: a cluster of its own on this machine, then `training.launch`."""

from training.cluster import ray_cluster
from training.job import TrainingJob
from training.launch import launch
from training.records import TrainedModel


def launch_on_ray(job: TrainingJob) -> TrainedModel:
    """Start Ray, train to the end, end Ray."""
    with ray_cluster(job.settings):
        return launch(job)
